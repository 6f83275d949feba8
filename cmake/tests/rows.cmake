# SPDX-License-Identifier: MIT
# Random programs over sets of rows against the naive model (tests/diff/rowops.h).
add_executable(test_rows tests/diff/test_rows.c tests/diff/rowops.c tests/diff/rowops_rounds.c tests/diff/rowops_rig.c tests/diff/rowops_rect.c tests/diff/rec_naive.c tests/diff/naive.c
  $<TARGET_OBJECTS:kvstate_objects>)
target_include_directories(test_rows PRIVATE include src tests)
target_compile_definitions(test_rows PRIVATE KVS_STATIC)
target_link_libraries(test_rows PRIVATE kvs_flags Threads::Threads m)
add_test(NAME rows_ops COMMAND test_rows --programs 2000)
set_tests_properties(rows_ops PROPERTIES LABELS "quick;diff" TIMEOUT 600)
add_test(NAME rows_ops_long COMMAND test_rows --first 1000001 --programs 20000)
set_tests_properties(rows_ops_long PROPERTIES LABELS "long;diff" TIMEOUT 1800)

# Every allocation of every call on rows fails once.
if(CMOCKA_LIB AND NOT CMAKE_CROSSCOMPILING)
  add_executable(test_fault_rows tests/fault/test_fault_rows.c $<TARGET_OBJECTS:kvstate_objects>)
  target_include_directories(test_fault_rows PRIVATE include src tests)
  target_compile_definitions(test_fault_rows PRIVATE KVS_STATIC)
  target_link_libraries(test_fault_rows PRIVATE kvs_flags Threads::Threads m ${CMOCKA_LIB})
  add_test(NAME fault_rows COMMAND test_fault_rows)
  set_tests_properties(fault_rows PROPERTIES LABELS "quick;fault" TIMEOUT 120)
endif()
