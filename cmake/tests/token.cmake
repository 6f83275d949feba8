# SPDX-License-Identifier: MIT
# The tokenizers against other libraries' (tests/oracle/tokens.py), on real vocabularies.
if(KVS_ENGINE AND NOT CMAKE_CROSSCOMPILING)
  kvs_program(token_driver ENGINE tests/oracle/token_driver.c)
endif()
find_package(Python3 QUIET COMPONENTS Interpreter)
if(TARGET token_driver AND Python3_FOUND)
  set(dir ${PROJECT_SOURCE_DIR}/tests/oracle)
  add_test(NAME oracle_token COMMAND Python3::Interpreter ${dir}/with_venv.py
    ${PROJECT_BINARY_DIR}/venv-token ${dir}/requirements-token.txt
    ${dir}/oracle_token.py $<TARGET_FILE:token_driver>)
  set_tests_properties(oracle_token PROPERTIES LABELS "oracle;model" TIMEOUT 2400 SKIP_RETURN_CODE 77)
endif()
if(TARGET token_driver AND Python3_FOUND)
  # a fixed seed: others may find what docs/tokenizers.md lists as known
  add_test(NAME oracle_token_json COMMAND Python3::Interpreter ${dir}/with_venv.py
    ${PROJECT_BINARY_DIR}/venv-token ${dir}/requirements-token.txt
    ${dir}/oracle_token_json.py $<TARGET_FILE:token_driver> 12)
  # one environment for both: they must not make it at the same time
  set_tests_properties(oracle_token_json PROPERTIES LABELS oracle TIMEOUT 1200
    SKIP_RETURN_CODE 77 RESOURCE_LOCK venv-token)
  set_tests_properties(oracle_token PROPERTIES RESOURCE_LOCK venv-token)
endif()
