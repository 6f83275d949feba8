# SPDX-License-Identifier: MIT
# run --prompt-cache from outside, with a tiny model.
if(KVS_ENGINE AND NOT CMAKE_CROSSCOMPILING AND TARGET tiny_model)
  add_test(NAME cli_prompt_cache COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/prompt_cache.sh
    $<TARGET_FILE:kvstate_app> $<TARGET_FILE:tiny_model>)
  set_tests_properties(cli_prompt_cache PROPERTIES LABELS "quick" TIMEOUT 120)
endif()
