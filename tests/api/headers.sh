#!/bin/sh
# SPDX-License-Identifier: MIT
# headers.sh CC CXX INCLUDE_DIR: every public header compiles by itself as C99 and as C++11 without
# a warning, and each KVS_X_INIT initialises every field of kvs_x.
set -eu
cc=$1
cxx=$2
include=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
status=0
n=0
for header in "$include"/kvstate/*.h; do
    name=$(basename "$header" .h)
    {
        echo "#include \"kvstate/$name.h\""
        sed -n 's/^#define KVS_\([A-Z0-9_]*\)_INIT .*/\1/p' "$header" | while read -r type; do
            lower=$(echo "$type" | tr 'A-Z' 'a-z')
            echo "extern kvs_$lower made_$lower;"
            echo "kvs_$lower made_$lower = KVS_${type}_INIT;"
        done
        echo "int end_of_file;"
    } >"$tmp/$name.c"
    cp "$tmp/$name.c" "$tmp/$name.cc"
    "$cc" -std=c99 -pedantic -Wall -Wextra -Wundef -Werror -I "$include" -fsyntax-only \
        "$tmp/$name.c" || status=1
    "$cxx" -std=c++11 -pedantic -Wall -Wextra -Wundef -Werror -I "$include" -fsyntax-only \
        "$tmp/$name.cc" || status=1
    lines=$(wc -l <"$header")
    if [ "$lines" -gt 400 ]; then
        echo "$header has $lines lines, more than 400"
        status=1
    fi
    n=$((n + 1))
done
echo "$n headers"
[ "$n" -gt 0 ] && exit $status
