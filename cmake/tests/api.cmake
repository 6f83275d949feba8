# SPDX-License-Identifier: MIT
# tests/api: the rooms, the public headers, the exported symbols, the installed package.
if(CMAKE_CROSSCOMPILING)
  return()
endif()
find_program(KVS_PYTHON3 python3)
if(KVS_PYTHON3)
  add_test(NAME arrows COMMAND ${KVS_PYTHON3} ${PROJECT_SOURCE_DIR}/scripts/check_arrows.py
    ${PROJECT_SOURCE_DIR})
  add_test(NAME arrows_checker COMMAND ${KVS_PYTHON3} ${PROJECT_SOURCE_DIR}/tests/api/test_arrows.py)
  set_tests_properties(arrows arrows_checker PROPERTIES LABELS quick TIMEOUT 60)
endif()
find_program(KVS_CXX NAMES c++ g++ clang++)
if(KVS_CXX)
  add_test(NAME api_headers COMMAND sh ${PROJECT_SOURCE_DIR}/tests/api/headers.sh
    ${CMAKE_C_COMPILER} ${KVS_CXX} ${PROJECT_SOURCE_DIR}/include)
  set_tests_properties(api_headers PROPERTIES LABELS quick TIMEOUT 120)
else()
  message(WARNING "no C++ compiler: the headers are not tested as C++ (Debian: g++)")
endif()

if(CMOCKA_LIB)
  add_executable(test_struct_size tests/api/test_struct_size.c)
  target_link_libraries(test_struct_size PRIVATE kvs_flags kvstate ${CMOCKA_LIB})
  target_include_directories(test_struct_size PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  add_test(NAME test_struct_size COMMAND test_struct_size)
  set_tests_properties(test_struct_size PROPERTIES LABELS quick TIMEOUT 60)
endif()

# Sanitizers bring symbols and flags of their own.
if(NOT KVS_SANITIZE)
  add_test(NAME api_symbols COMMAND sh ${PROJECT_SOURCE_DIR}/tests/api/symbols.sh
    $<TARGET_FILE:kvstate> ${PROJECT_SOURCE_DIR}/tests/api/symbols.txt)
  add_custom_target(symbols COMMAND sh ${PROJECT_SOURCE_DIR}/tests/api/symbols.sh
    $<TARGET_FILE:kvstate> ${PROJECT_SOURCE_DIR}/tests/api/symbols.txt --update DEPENDS kvstate)
  set(KVS_API_TESTS api_symbols)
  if(TARGET kvstate_engine)
    add_test(NAME api_symbols_engine COMMAND sh ${PROJECT_SOURCE_DIR}/tests/api/symbols.sh
      $<TARGET_FILE:kvstate_engine> ${PROJECT_SOURCE_DIR}/tests/api/symbols_engine.txt)
    add_custom_target(symbols_engine COMMAND sh ${PROJECT_SOURCE_DIR}/tests/api/symbols.sh
      $<TARGET_FILE:kvstate_engine> ${PROJECT_SOURCE_DIR}/tests/api/symbols_engine.txt --update
      DEPENDS kvstate_engine)
    add_dependencies(symbols symbols_engine)
    list(APPEND KVS_API_TESTS api_symbols_engine)
  endif()
  add_test(NAME api_install COMMAND sh ${PROJECT_SOURCE_DIR}/tests/api/install.sh
    ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR} ${CMAKE_C_COMPILER} $<$<BOOL:${KVS_CXX}>:${KVS_CXX}>)
  list(APPEND KVS_API_TESTS api_install)
  set_tests_properties(${KVS_API_TESTS} PROPERTIES LABELS quick TIMEOUT 120)
endif()
