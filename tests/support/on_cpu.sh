#!/bin/sh
# SPDX-License-Identifier: MIT
# on_cpu.sh CPU PROGRAM...: runs a program on an emulated x86-64 CPU; 77 without the emulator.
set -eu
cpu=$1
shift
if ! command -v qemu-x86_64 >/dev/null 2>&1; then
    echo "SKIP qemu-x86_64 is missing (Debian: qemu-user)"
    exit 77
fi
exec qemu-x86_64 -cpu "$cpu" "$@"
