# SPDX-License-Identifier: MIT
# Kernels of model weights against their reference; runs under the emulator when cross-building.
add_executable(wcheck tests/kcheck/wcheck.c $<TARGET_OBJECTS:kvstate_objects>)
target_include_directories(wcheck PRIVATE include src)
target_compile_definitions(wcheck PRIVATE KVS_STATIC)
target_link_libraries(wcheck PRIVATE kvs_flags Threads::Threads m)
add_test(NAME wcheck COMMAND wcheck)
set_tests_properties(wcheck PROPERTIES LABELS "quick;kernel" TIMEOUT 300)
