# SPDX-License-Identifier: MIT
# kvs_program(NAME [ENGINE] [CMOCKA] SOURCE...): a test, driver or bench over the library's objects,
# with ENGINE over the engine's too, with CMOCKA linked to it. It may include internals and tests/.
function(kvs_program name)
  cmake_parse_arguments(PARSE_ARGV 1 with "ENGINE;CMOCKA" "" "")
  add_executable(${name} ${with_UNPARSED_ARGUMENTS} $<TARGET_OBJECTS:kvstate_objects>)
  target_include_directories(${name} PRIVATE include src tests)
  target_compile_definitions(${name} PRIVATE KVS_STATIC)
  target_link_libraries(${name} PRIVATE kvs_flags Threads::Threads m)
  if(with_ENGINE)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:kvstate_engine_objects>)
    target_link_libraries(${name} PRIVATE PkgConfig::KVS_PCRE2)
  endif()
  if(with_CMOCKA)
    target_link_libraries(${name} PRIVATE ${CMOCKA_LIB})
  endif()
endfunction()

# What runs the random programs of tests/diff, which are fuzz targets too.
set(KVS_OPS_SRC tests/diff/ops.c tests/diff/ops_import.c tests/diff/naive.c)
set(KVS_ROWOPS_SRC tests/diff/rowops.c tests/diff/rowops_rounds.c tests/diff/rowops_rig.c
  tests/diff/rowops_rect.c tests/diff/rec_naive.c tests/diff/naive.c)
set(KVS_PREFIXOPS_SRC tests/diff/prefixops.c tests/diff/prefixops_world.c)
