# SPDX-License-Identifier: MIT
# Tiny models of every architecture, built and computed by mlx_lm, against the engine.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(KVS_ENGINE AND Python3_FOUND AND NOT CMAKE_CROSSCOMPILING AND NOT KVS_SANITIZE)
  set(dir ${PROJECT_SOURCE_DIR}/tests/oracle)
  add_test(NAME oracle_arch COMMAND Python3::Interpreter ${dir}/with_venv.py
    ${PROJECT_BINARY_DIR}/venv-arch ${dir}/requirements-arch.txt ${dir}/oracle_arch.py
    $<TARGET_FILE:kvstate_engine>)
  set_tests_properties(oracle_arch PROPERTIES LABELS oracle TIMEOUT 900 SKIP_RETURN_CODE 77
    RESOURCE_LOCK venv-arch)
endif()
