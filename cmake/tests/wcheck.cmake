# SPDX-License-Identifier: MIT
# Kernels of model weights against their reference; runs under the emulator when cross-building.
kvs_program(wcheck tests/kcheck/wcheck.c)
add_test(NAME wcheck COMMAND wcheck)
set_tests_properties(wcheck PROPERTIES LABELS "quick;kernel" TIMEOUT 300)
