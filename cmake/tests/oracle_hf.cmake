# SPDX-License-Identifier: MIT
# Checkpoints that mlx_lm writes, opened by the engine and computed by both.
find_program(KVS_PYTHON NAMES python3)
if(KVS_ENGINE AND KVS_PYTHON AND NOT CMAKE_CROSSCOMPILING AND NOT KVS_SANITIZE)
  set(dir ${PROJECT_SOURCE_DIR}/tests)
  add_test(NAME oracle_hf COMMAND ${KVS_PYTHON} ${dir}/oracle/with_venv.py
    ${PROJECT_BINARY_DIR}/venv-hf ${dir}/oracle/requirements-hf.txt ${dir}/oracle/oracle_hf.py
    $<TARGET_FILE:kvstate_engine>)
  set_tests_properties(oracle_hf PROPERTIES LABELS oracle TIMEOUT 900 SKIP_RETURN_CODE 77)
endif()
