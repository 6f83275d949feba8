# SPDX-License-Identifier: MIT
# kvs_fuzz_program(SRC PREFIX MAIN): the program PREFIXname for tests/fuzz/fuzz_name.c. With MAIN (a
# source file) it is a plain program, without it libFuzzer brings main. A target that includes an
# engine/ header gets the engine too and is left out where the engine is not built. Sets
# KVS_FUZZ_TARGET to the program's name, or to nothing.
function(kvs_fuzz_program src prefix main)
  get_filename_component(file ${src} NAME_WE)
  string(REGEX REPLACE "^fuzz_" "${prefix}" name ${file})
  file(STRINGS ${src} engine REGEX "^#include \"engine/")
  set(KVS_FUZZ_TARGET "" PARENT_SCOPE)
  if(engine AND NOT KVS_ENGINE)
    return()
  endif()
  add_executable(${name} ${src} ${main} $<TARGET_OBJECTS:kvstate_objects>)
  target_include_directories(${name} PRIVATE include src tests)
  target_compile_definitions(${name} PRIVATE KVS_STATIC)
  target_link_libraries(${name} PRIVATE kvs_flags Threads::Threads m)
  if(engine)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:kvstate_engine_objects>)
    target_link_libraries(${name} PRIVATE PkgConfig::KVS_PCRE2)
  endif()
  if(KVS_FUZZ)
    # with a main of its own it still needs the runtime that the instrumented objects call
    target_link_options(${name} PRIVATE $<IF:$<BOOL:${main}>,-fsanitize=fuzzer-no-link,-fsanitize=fuzzer>)
  endif()
  file(STRINGS ${src} diff REGEX "^#include \"diff/ops")
  if(diff)
    target_sources(${name} PRIVATE tests/diff/ops.c tests/diff/naive.c)
  endif()
  set(KVS_FUZZ_TARGET ${name} PARENT_SCOPE)
endfunction()
