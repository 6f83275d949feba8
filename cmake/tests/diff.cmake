# SPDX-License-Identifier: MIT
# Random op programs against the naive model (tests/diff). Also built as a libFuzzer target.
add_executable(test_cache_ops tests/diff/test_cache_ops.c tests/diff/ops.c tests/diff/ops_import.c tests/diff/naive.c
  $<TARGET_OBJECTS:kvstate_objects>)
target_include_directories(test_cache_ops PRIVATE include src tests)
target_compile_definitions(test_cache_ops PRIVATE KVS_STATIC)
target_link_libraries(test_cache_ops PRIVATE kvs_flags Threads::Threads m)
add_test(NAME cache_ops COMMAND test_cache_ops 1 400)
add_test(NAME cache_ops_fail COMMAND test_cache_ops 100001 400 fail)
set_tests_properties(cache_ops cache_ops_fail PROPERTIES LABELS "quick;diff" TIMEOUT 600)
add_test(NAME cache_ops_long COMMAND test_cache_ops 1000001 6000)
add_test(NAME cache_ops_fail_long COMMAND test_cache_ops 2000001 6000 fail)
set_tests_properties(cache_ops_long cache_ops_fail_long PROPERTIES LABELS "long;diff" TIMEOUT 1800)
