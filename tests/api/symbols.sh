#!/bin/sh
# SPDX-License-Identifier: MIT
# symbols.sh LIBRARY LIST [--update]: the shared library exports exactly the symbols in LIST, all of
# them kvs_ and none of the internal kvs__.
#
# A function was added on purpose: run `make symbols` and commit the list. A function went or changed
# its meaning: that breaks programs in use; raise KVS_ABI and say so in CHANGELOG.md.
set -eu
lib=$1
list=$2
# _init, _fini and the like come from old linkers
have=$(nm -D --defined-only "$lib" | awk '{print $3}' | grep -v '^_\(init\|fini\|edata\|end\)$\|^__bss_start$' |
    LC_ALL=C sort)
foreign=$(echo "$have" | grep -v '^kvs_[a-z0-9]' || true)
if [ -n "$foreign" ]; then
    echo "exported without the public prefix:" $foreign
    exit 1
fi
if [ "${3:-}" = --update ]; then
    echo "$have" >"$list"
    exit 0
fi
echo "$have" | diff -u "$list" - && exit 0
echo "the exported symbols differ from $list (- listed, + exported)"
exit 1
