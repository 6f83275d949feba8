#!/bin/sh
# SPDX-License-Identifier: MIT
# tidy1.sh COMMON FILE: clang-tidy on one file, unless the same content passed before. COMMON is a
# digest of everything the file may depend on besides its own text.
set -u
key=build/lint-cache/$(basename "$2").$(cat "$2" "$0" | sha256sum | cut -c1-16).$1
if [ -e "$key" ]; then
    exit 0
fi
if clang-tidy -p build/lint --quiet --warnings-as-errors='*' "$2" 2>"$key.err"; then
    rm -f "$key.err"
    : >"$key"
    exit 0
fi
grep -v 'warnings generated\|Suppressed\|Use -header-filter' "$key.err" >&2
rm -f "$key.err"
exit 1
