# SPDX-License-Identifier: MIT
# Prompt-cache files between the engine and mlx_lm, in both layouts; label oracle.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(KVS_ENGINE AND Python3_FOUND AND NOT CMAKE_CROSSCOMPILING AND NOT KVS_SANITIZE)
  set(dir ${PROJECT_SOURCE_DIR}/tests/oracle)
  foreach(set files files-parent)
    add_test(NAME oracle_${set} COMMAND Python3::Interpreter ${dir}/with_venv.py
      ${PROJECT_BINARY_DIR}/venv-${set} ${dir}/requirements-${set}.txt ${dir}/oracle_files.py
      $<TARGET_FILE:kvstate_engine>)
    set_tests_properties(oracle_${set} PROPERTIES LABELS oracle TIMEOUT 900 SKIP_RETURN_CODE 77)
  endforeach()
endif()
