# SPDX-License-Identifier: MIT
# Replays of what MLX, mlx-lm and mlx-optiq answered (tests/golden/README.md). Plain programs, so
# that they also run where cmocka is not, under an emulator included.
foreach(name codec attention caches)
  if(EXISTS ${PROJECT_SOURCE_DIR}/tests/diff/golden_${name}.c)
    kvs_program(golden_${name} tests/diff/golden_${name}.c)
    target_compile_definitions(golden_${name} PRIVATE KVS_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden/mlx")
    add_test(NAME golden_${name} COMMAND golden_${name})
    set_tests_properties(golden_${name} PROPERTIES LABELS "quick;diff" TIMEOUT 300)
  endif()
endforeach()

# The recorded files are the ones that were recorded.
add_test(NAME golden_hashes COMMAND ${CMAKE_COMMAND} -DFOLDER=${PROJECT_SOURCE_DIR}/tests/golden/mlx
  -P ${PROJECT_SOURCE_DIR}/tests/golden/check_hashes.cmake)
set_tests_properties(golden_hashes PROPERTIES LABELS quick)
