# SPDX-License-Identifier: MIT
# The object store under crashes, killed processes, failing calls and random programs (tests/crash).
foreach(name store_crash store_ops store_kill)
  if(EXISTS ${PROJECT_SOURCE_DIR}/tests/crash/test_${name}.c)
    add_executable(test_${name} tests/crash/test_${name}.c $<TARGET_OBJECTS:kvstate_objects>)
    target_include_directories(test_${name} PRIVATE include src tests)
    target_compile_definitions(test_${name} PRIVATE KVS_STATIC)
    target_link_libraries(test_${name} PRIVATE kvs_flags Threads::Threads m)
  endif()
endforeach()
add_test(NAME store_crash COMMAND test_store_crash 1 3 3)
set_tests_properties(store_crash PROPERTIES LABELS "quick;crash" TIMEOUT 300)
add_test(NAME store_crash_long COMMAND test_store_crash 100 60 1)
set_tests_properties(store_crash_long PROPERTIES LABELS "long;crash" TIMEOUT 1800)
