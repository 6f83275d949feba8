# SPDX-License-Identifier: MIT
# The GGUF reader and the weight types against the `gguf` Python package, live.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(KVS_ENGINE AND Python3_FOUND AND NOT CMAKE_CROSSCOMPILING)
  kvs_program(gguf_tool ENGINE tests/oracle/gguf_tool.c)
  set(dir ${PROJECT_SOURCE_DIR}/tests)
  add_test(NAME oracle_gguf COMMAND Python3::Interpreter ${dir}/oracle/with_venv.py
    ${PROJECT_BINARY_DIR}/venv-gguf ${dir}/golden/requirements-gguf.txt
    ${dir}/oracle/oracle_gguf.py $<TARGET_FILE:gguf_tool>)
  set_tests_properties(oracle_gguf PROPERTIES LABELS oracle TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
