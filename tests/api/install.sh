#!/bin/sh
# SPDX-License-Identifier: MIT
# install.sh BUILD_DIR SOURCE_DIR CC [CXX]: installs to a fresh prefix that the build was not configured
# for, then builds and runs programs against it: through pkg-config (shared and static) and through
# find_package(kvstate), the engine's too, and as C++. The programs are tests/api/consumer.c and the
# example of README.md. `make install` has to build all that is installed, and builds `product`.
set -eu
build=$1
source=$2
cc=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
prefix=$tmp/some/prefix
cmake --install "$build" --prefix "$prefix" >"$tmp/install.log" || {
    cat "$tmp/install.log"
    exit 1
}
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name kvstate.pc)")
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
export PKG_CONFIG_PATH LD_LIBRARY_PATH

if [ -f "$build/build.ninja" ]; then
    ninja -C "$build" -t query product >"$tmp/product"
    for file in "$LD_LIBRARY_PATH"/lib*.so "$LD_LIBRARY_PATH"/lib*.a "$prefix"/bin/*; do
        [ ! -e "$file" ] || grep -qx " *$(basename "$file")" "$tmp/product" || {
            echo "product does not build $(basename "$file"), which is installed"
            exit 1
        }
    done
fi

cp "$source/tests/api/consumer.c" "$tmp/consumer.c"
awk '/^```c$/ { on = 1; next } /^```$/ { if (on) exit } on' "$source/README.md" >"$tmp/example.c"
[ -s "$tmp/example.c" ] || {
    echo "README.md has no C example"
    exit 1
}

programs="consumer example"
flags="-std=c99 -pedantic -Wall -Wextra -Werror"
# shellcheck disable=SC2046,SC2086
{
    $cc $flags $(pkg-config --cflags kvstate) -c -o "$tmp/example.o" "$tmp/example.c"
    for p in $programs; do
        $cc $flags -o "$tmp/$p" "$tmp/$p.c" $(pkg-config --cflags --libs kvstate)
        "$tmp/$p"
        $cc $flags -DKVS_STATIC -o "$tmp/$p-static" "$tmp/$p.c" $(pkg-config --cflags kvstate) \
            "$LD_LIBRARY_PATH/libkvstate.a" $(pkg-config --static --libs-only-l kvstate |
            sed 's/-lkvstate//')
        LD_LIBRARY_PATH=/nonexistent "$tmp/$p-static"
    done
}
if [ -f "$PKG_CONFIG_PATH/kvstate_engine.pc" ]; then
    cat >"$tmp/engine.c" <<'ENGINE'
#include <kvstate/model.h>
int main(void)
{
    kvs_ctx *ctx = 0;
    kvs_model *model = 0;
    kvs_err err;
    kvs_status st = kvs_ctx_new(0, &ctx, &err) ? KVS_E_INTERNAL
                                               : kvs_model_open(ctx, "/no/such.gguf", 0, &model, &err);
    kvs_ctx_free(ctx);
    return st == KVS_E_IO || st == KVS_E_NOTFOUND ? 0 : 1;
}
ENGINE
    # shellcheck disable=SC2046,SC2086
    $cc $flags -o "$tmp/engine" "$tmp/engine.c" $(pkg-config --cflags --libs kvstate_engine)
    "$tmp/engine"
fi
if [ -n "${4-}" ]; then
    # shellcheck disable=SC2046
    "$4" -x c++ -std=c++11 -pedantic -Wall -Wextra -Werror -o "$tmp/consumer-cxx" "$tmp/consumer.c" \
        -x none $(pkg-config --cflags --libs kvstate)
    "$tmp/consumer-cxx"
fi
[ "$(pkg-config --modversion kvstate)" = "$("$tmp/consumer" | sed 's/kvstate //')" ]

cat >"$tmp/CMakeLists.txt" <<'LISTS'
cmake_minimum_required(VERSION 3.16)
project(consumer C)
find_package(kvstate 0.1 REQUIRED)
foreach(p IN LISTS PROGRAMS)
  add_executable(${p} ${p}.c)
  target_link_libraries(${p} PRIVATE kvstate::kvstate)
  add_executable(${p}_static ${p}.c)
  target_link_libraries(${p}_static PRIVATE kvstate::kvstate_static)
endforeach()
if(TARGET kvstate::kvstate_engine)
  add_executable(engine engine.c)
  target_link_libraries(engine PRIVATE kvstate::kvstate_engine)
endif()
LISTS
unset LD_LIBRARY_PATH
{
    cmake -S "$tmp" -B "$tmp/out" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
        -DPROGRAMS="$(echo "$programs" | tr ' ' ';')"
    cmake --build "$tmp/out"
} >"$tmp/cmake.log" 2>&1 || {
    cat "$tmp/cmake.log"
    exit 1
}
for p in $programs; do
    "$tmp/out/$p"
    "$tmp/out/${p}_static"
done
if [ -f "$tmp/engine.c" ]; then
    "$tmp/out/engine"
fi
