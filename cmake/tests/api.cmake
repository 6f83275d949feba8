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
