# SPDX-License-Identifier: MIT
# Every bench/bench_*.c is one program over the static library.
include(cmake/program.cmake)
file(GLOB KVS_BENCH_SRC CONFIGURE_DEPENDS bench/bench_*.c)
foreach(src IN LISTS KVS_BENCH_SRC)
  get_filename_component(name ${src} NAME_WE)
  if(NOT KVS_ENGINE AND name MATCHES "^bench_(model|rows|wmat|warm)$")
    continue()
  endif()
  kvs_program(${name} ${src})
  if(name STREQUAL "bench_wmat") # the one that measures the engine's own split
    target_sources(${name} PRIVATE src/engine/matmul.c)
  endif()
  if(name MATCHES "^bench_(model|rows|warm)$")
    target_link_libraries(${name} PRIVATE kvstate_engine_static)
  endif()
endforeach()
