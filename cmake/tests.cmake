# SPDX-License-Identifier: MIT
# Every tests/unit/test_*.c is one program and one CTest entry. Further suites have their own file
# in cmake/tests/. Labels: quick, kernel, diff, fault, oracle, model, long.
include(CTest)
include(cmake/program.cmake)
find_library(CMOCKA_LIB cmocka)
file(GLOB KVS_UNIT_SRC CONFIGURE_DEPENDS tests/unit/test_*.c)
list(FILTER KVS_UNIT_SRC EXCLUDE REGEX "/test_engine_[^/]*$") # cmake/tests/engine.cmake
if(CMOCKA_LIB AND NOT CMAKE_CROSSCOMPILING)
  foreach(src IN LISTS KVS_UNIT_SRC)
    get_filename_component(name ${src} NAME_WE)
    kvs_program(${name} CMOCKA ${src})
    target_compile_definitions(${name} PRIVATE KVS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS quick TIMEOUT 120 SKIP_RETURN_CODE 77)
  endforeach()
elseif(NOT CMAKE_CROSSCOMPILING)
  message(WARNING "cmocka not found: unit tests are not built (Debian: libcmocka-dev)")
endif()
file(GLOB KVS_TEST_FILES CONFIGURE_DEPENDS cmake/tests/*.cmake)
foreach(f IN LISTS KVS_TEST_FILES)
  include(${f})
endforeach()
