#!/bin/sh
# SPDX-License-Identifier: MIT
# deps.sh build|run|test|lint: makes sure that the Debian packages of a make target are there.
#
# As root on Debian the missing ones are installed. Otherwise the exact command is printed and the
# exit status is 1, so that make stops. Where there is no apt-get the missing tools are named by
# their Debian package and make stops as well: nothing is guessed.
# What counts is the tool, the header or the library, not the package that brought it.
set -eu

missing=

# need PACKAGE PROBE...: adds the package unless the probe succeeds.
need() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

tool() {
    command -v "$1"
}

has_rt() {
    test -e "$(clang -print-file-name=libclang_rt.asan-x86_64.a)" ||
        test -e "$(clang -print-file-name=libclang_rt.asan-aarch64.a)" ||
        ls "$(clang -print-resource-dir)"/lib/*/libclang_rt.asan*.a
}

build_set() {
    need gcc tool cc
    need libc6-dev test -e /usr/include/stdio.h
    need cmake tool cmake
    need ninja-build tool ninja
    need pkg-config tool pkg-config
    need libpcre2-dev pkg-config --exists libpcre2-8
    need libutf8proc-dev pkg-config --exists libutf8proc
    need libedit-dev pkg-config --exists libedit
    need libxxhash-dev test -e /usr/include/xxhash.h
}

run_set() {
    build_set
    need python3 tool python3
    need python3-pip python3 -m pip --version
}

lint_set() {
    need clang tool clang
    need clang-format tool clang-format
    need clang-tidy tool clang-tidy
    need cppcheck tool cppcheck
}

test_set() {
    run_set
    lint_set
    need g++ tool c++
    need libcmocka-dev test -e /usr/include/cmocka.h
    need libclang-rt-dev has_rt
    need llvm tool llvm-symbolizer
    need python3-venv python3 -c 'import ensurepip, venv'
    if [ "$(uname -m)" = x86_64 ]; then
        need gcc-aarch64-linux-gnu tool aarch64-linux-gnu-gcc
        need libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/include/stdio.h
        need qemu-user tool qemu-aarch64
    fi
}

case ${1:-} in
build) build_set ;;
run) run_set ;;
lint) build_set && lint_set ;;
test) test_set ;;
*)
    echo "usage: $0 build|run|test|lint" >&2
    exit 2
    ;;
esac

[ -n "$missing" ] || exit 0

install="apt-get update && apt-get install -y --no-install-recommends$missing"
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    echo "deps: installing$missing" >&2
    apt-get update -q >&2
    # shellcheck disable=SC2086  # one word a package
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >&2
    exit 0
fi
echo "deps: packages are missing:$missing" >&2
echo "deps: as root on Debian: $install" >&2
exit 1
