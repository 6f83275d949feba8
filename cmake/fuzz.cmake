# SPDX-License-Identifier: MIT
# Every tests/fuzz/fuzz_*.c is one libFuzzer program.
