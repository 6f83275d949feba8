# SPDX-License-Identifier: MIT
# The kernel checker: every tier against the reference; see tests/kcheck/kcheck.c.
file(GLOB KVS_KCHECK_SRC CONFIGURE_DEPENDS tests/kcheck/*.c)
add_executable(kcheck ${KVS_KCHECK_SRC} $<TARGET_OBJECTS:kvstate_objects>)
target_include_directories(kcheck PRIVATE include src tests/kcheck)
target_compile_definitions(kcheck PRIVATE KVS_STATIC)
target_link_libraries(kcheck PRIVATE kvs_flags Threads::Threads m)
add_test(NAME kcheck COMMAND kcheck)
set_tests_properties(kcheck PROPERTIES LABELS "kernel;quick" TIMEOUT 600 SKIP_RETURN_CODE 77)
