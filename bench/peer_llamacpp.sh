#!/bin/sh
# SPDX-License-Identifier: MIT
# peer_llamacpp.sh FOLDER: builds llama.cpp natively into FOLDER for `make bench B=model PEER=...` and
# prints the folder to give there. Its source is the copy inside the source distribution of the
# Python package llama-cpp-python; nothing of it enters this tree. A build that is there is kept.
#
# Needs cmake, ninja, a C++ compiler and python3 with pip; two CPUs take about ten minutes.
set -eu

version=0.3.36
if [ $# -ne 1 ]; then
    echo "usage: $0 FOLDER" >&2
    exit 2
fi

say() {
    echo "peer_llamacpp: $*" >&2
}

for tool in cmake ninja c++ python3; do
    command -v "$tool" >/dev/null 2>&1 || {
        say "$tool is needed (Debian: apt-get install cmake ninja-build g++ python3-pip)"
        exit 1
    }
done

mkdir -p "$1"
dir=$(cd "$1" && pwd)
build=$dir/build
if [ -x "$build/bin/llama-bench" ]; then
    echo "$build"
    exit 0
fi

src=$dir/llama_cpp_python-$version
if [ ! -d "$src" ]; then
    say "fetching the source of llama-cpp-python $version"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
        --dest "$dir" "llama-cpp-python==$version" >&2 || {
        say "pip could not download the source (no network, or no index that has it)"
        exit 1
    }
    tar -xzf "$dir/llama_cpp_python-$version.tar.gz" -C "$dir"
fi

say "building; progress goes to $dir/build.log"
if ! cmake -G Ninja -S "$src/vendor/llama.cpp" -B "$build" -DCMAKE_BUILD_TYPE=Release \
    -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_BUILD_UI=OFF >"$dir/build.log" 2>&1 ||
    ! ninja -C "$build" llama-bench llama-batched-bench >>"$dir/build.log" 2>&1; then
    tail -n 20 "$dir/build.log" >&2
    exit 1
fi
echo "$build"
