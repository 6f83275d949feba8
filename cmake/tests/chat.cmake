# SPDX-License-Identifier: MIT
# Chat templates against Python's jinja2, and `kvstate chat` from outside.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(KVS_ENGINE AND NOT CMAKE_CROSSCOMPILING)
  add_executable(jinja_driver tests/oracle/jinja_driver.c
    $<TARGET_OBJECTS:kvstate_engine_objects> $<TARGET_OBJECTS:kvstate_objects>)
  target_include_directories(jinja_driver PRIVATE include)
  target_compile_definitions(jinja_driver PRIVATE KVS_STATIC)
  target_link_libraries(jinja_driver PRIVATE kvs_flags Threads::Threads m PkgConfig::KVS_PCRE2)
  if(Python3_FOUND)
    set(dir ${PROJECT_SOURCE_DIR}/tests/oracle)
    add_test(NAME oracle_jinja COMMAND Python3::Interpreter ${dir}/with_venv.py
      ${PROJECT_BINARY_DIR}/venv-jinja ${dir}/requirements-jinja.txt
      ${dir}/oracle_jinja.py $<TARGET_FILE:jinja_driver>)
    set_tests_properties(oracle_jinja PROPERTIES LABELS oracle TIMEOUT 600 SKIP_RETURN_CODE 77)
  endif()
endif()
