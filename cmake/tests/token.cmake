# SPDX-License-Identifier: MIT
# The tokenizers against other libraries' (tests/oracle/tokens.py), on real vocabularies.
if(KVS_ENGINE AND NOT CMAKE_CROSSCOMPILING)
  add_executable(token_driver tests/oracle/token_driver.c $<TARGET_OBJECTS:kvstate_engine_objects>
    $<TARGET_OBJECTS:kvstate_objects>)
  target_include_directories(token_driver PRIVATE include src)
  target_compile_definitions(token_driver PRIVATE KVS_STATIC)
  target_link_libraries(token_driver PRIVATE kvs_flags Threads::Threads m PkgConfig::KVS_PCRE2)
endif()
