# SPDX-License-Identifier: MIT
# Chat templates against Python's jinja2, and `kvstate chat` from outside.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(KVS_ENGINE AND NOT CMAKE_CROSSCOMPILING)
  kvs_program(jinja_driver ENGINE tests/oracle/jinja_driver.c)
  if(Python3_FOUND)
    set(dir ${PROJECT_SOURCE_DIR}/tests/oracle)
    add_test(NAME oracle_jinja COMMAND Python3::Interpreter ${dir}/with_venv.py
      ${PROJECT_BINARY_DIR}/venv-jinja ${dir}/requirements-jinja.txt
      ${dir}/oracle_jinja.py $<TARGET_FILE:jinja_driver>)
    set_tests_properties(oracle_jinja PROPERTIES LABELS oracle TIMEOUT 600 SKIP_RETURN_CODE 77)
  endif()
endif()
if(TARGET kvstate_app AND TARGET tiny_model AND Python3_FOUND)
  set(dir ${PROJECT_SOURCE_DIR}/tests/cli)
  set(KVS_EDITING 0)
  if(TARGET PkgConfig::KVS_LIBEDIT)
    set(KVS_EDITING 1)
  endif()
  add_test(NAME chat_pty COMMAND ${dir}/chat_pty.sh $<TARGET_FILE:kvstate_app>
    $<TARGET_FILE:tiny_model> ${KVS_EDITING})
  set_tests_properties(chat_pty PROPERTIES LABELS quick TIMEOUT 200)
  if(NOT KVS_SANITIZE)
    foreach(model SmolLM2-135M-Instruct.Q4_1 gemma-3-270m-q4_k_m)
      add_test(NAME chat_${model} COMMAND Python3::Interpreter ${dir}/chat_model.py
        $<TARGET_FILE:kvstate_app> ${model}.gguf)
      set_tests_properties(chat_${model} PROPERTIES LABELS model TIMEOUT 900 SKIP_RETURN_CODE 77)
    endforeach()
  endif()
endif()
