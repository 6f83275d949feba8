# SPDX-License-Identifier: MIT
# Attention reads in chosen shapes against the naive model, and against each other (tests/diff).
if(CMOCKA_LIB AND NOT CMAKE_CROSSCOMPILING)
  add_executable(test_cache_read tests/diff/test_cache_read.c tests/diff/naive.c
    $<TARGET_OBJECTS:kvstate_objects>)
  target_include_directories(test_cache_read PRIVATE include src tests)
  target_compile_definitions(test_cache_read PRIVATE KVS_STATIC)
  target_link_libraries(test_cache_read PRIVATE kvs_flags Threads::Threads m ${CMOCKA_LIB})
  add_test(NAME cache_read COMMAND test_cache_read)
  set_tests_properties(cache_read PROPERTIES LABELS "quick;diff" TIMEOUT 300)
  foreach(block 1 3 16 17 64 256)
    add_test(NAME cache_read_paged_${block} COMMAND test_cache_read ${block})
    set_tests_properties(cache_read_paged_${block} PROPERTIES LABELS "diff" TIMEOUT 300)
  endforeach()
endif()
