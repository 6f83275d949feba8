# SPDX-License-Identifier: MIT
# The library against the real MLX, mlx-lm and mlx-optiq in two sets of versions, on fresh input;
# label oracle. The packages go to the build folder; without network or pip the tests are skipped.
# The older set computes the same (the golden files say so), so it gets a tenth of the values.
find_program(KVS_PYTHON NAMES python3)
if(KVS_PYTHON AND NOT CMAKE_CROSSCOMPILING AND NOT KVS_SANITIZE)
  foreach(set mlx mlx-parent)
    set(size --values 1e7 --reads 1000 --caches 300)
    if(set STREQUAL "mlx-parent")
      set(size --values 1e6 --reads 300 --caches 100)
    endif()
    add_test(NAME oracle_${set} COMMAND ${KVS_PYTHON} ${PROJECT_SOURCE_DIR}/tests/oracle/run.py
      ${PROJECT_SOURCE_DIR}/tests/golden/requirements-${set}.txt ${PROJECT_BINARY_DIR}/oracle-${set}
      --library $<TARGET_FILE:kvstate> --golden ${PROJECT_SOURCE_DIR}/tests/golden ${size})
    set_tests_properties(oracle_${set} PROPERTIES LABELS oracle TIMEOUT 900 SKIP_RETURN_CODE 77)
  endforeach()
endif()
