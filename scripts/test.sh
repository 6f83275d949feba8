#!/bin/sh
# SPDX-License-Identifier: MIT
# test.sh: what `make test` runs. Every stage is built and tested even when an earlier one failed;
# the closing line sums up all of them, and the exit status is 1 if anything failed.
#
#   dev     gcc, warnings are errors, every test (real models if they can be fetched)
#   asan    clang, address and undefined-behaviour sanitizers: the quick tests
#   tsan    clang, thread sanitizer: what runs threads
#   msan    clang, memory sanitizer, reference kernels alone: the state core
#   arm64   cross-built, under qemu-user: the kernels against their reference
#   lint    format, clang-tidy, cppcheck
#
# usage: test.sh [STAGE...]; JOBS (number of CPUs), FETCH (0: get no model) from the environment.
set -u
cd "$(dirname "$0")/.." || exit 1

jobs=${JOBS:-$(nproc)}
logs=build/test-logs
passed=0
failed=0
skipped=0
summary=

note() {
    summary="$summary
  $1"
    echo "== $1"
}

# number FILE NAME: an attribute of the first <testsuite> of a JUnit file.
number() {
    n=$(tr '\n\t' '  ' <"$1" | sed -n "s/.*<testsuite [^>]*[^a-z]$2=\"\([0-9]*\)\".*/\1/p")
    echo "${n:-0}"
}

# one NAME STATUS: counts a step that is not a ctest run.
one() {
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
        note "$1: passed"
    else
        failed=$((failed + 1))
        note "$1: FAILED"
    fi
}

build() {
    log=$logs/$1-build.log
    if cmake --preset "$1" >"$log" 2>&1 && cmake --build "build/$1" -j "$jobs" >>"$log" 2>&1; then
        return 0
    fi
    tail -60 "$log"
    one "$1 build" 1
    return 1
}

# stage PRESET CTEST-ARGUMENTS...
stage() {
    preset=$1
    shift
    echo "== $preset"
    begin=$(date +%s)
    build "$preset" || return
    xml=$PWD/$logs/$preset.xml
    rm -f "$xml"
    ctest --test-dir "build/$preset" --output-on-failure -j "$jobs" --output-junit "$xml" "$@"
    status=$?
    if [ ! -f "$xml" ]; then
        one "$preset: ctest wrote no report" 1
        return
    fi
    all=$(number "$xml" tests)
    bad=$(number "$xml" failures)
    idle=$(($(number "$xml" skipped) + $(number "$xml" disabled)))
    if [ "$status" != 0 ] && [ "$bad" = 0 ]; then
        bad=1
        all=$((all + 1))
    fi
    if [ "$all" = 0 ]; then
        one "$preset: no test matches $*" 1
        return
    fi
    passed=$((passed + all - bad - idle))
    failed=$((failed + bad))
    skipped=$((skipped + idle))
    note "$preset: $((all - bad - idle)) passed, $bad failed, $idle skipped ($(($(date +%s) - begin)) s)"
}

fetch() {
    if [ "${FETCH:-1}" = 0 ] || [ ! -x scripts/fetch-model.sh ]; then
        return
    fi
    for model in smollm2 gemma3; do
        timeout 300 scripts/fetch-model.sh $model >/dev/null ||
            echo "test: $model could not be fetched; its tests will be skipped"
    done
}

mkdir -p "$logs"
for s in ${*:-dev asan tsan msan arm64 lint}; do
    case $s in
    dev) fetch && stage dev ;;
    asan) stage asan -L quick ;;
    tsan) stage tsan -R '^(test_arena|test_pool|test_cache.*|test_engine_persist|test_engine_prefix_cache|cache_ops|golden_attention|test_engine_matmul|test_store(_dir|_fail)?|store_ops_threads)$' ;;
    msan) stage msan -R '^(test_cache.*|test_codec|cache_read|fault|replay_cache_ops|replay_mask|test_store(_dir|_fail)?|test_sha256|replay_store|store_crash)$' ;;
    arm64)
        if [ "$(uname -m)" = x86_64 ]; then
            stage arm64 -LE 'long|oracle|model'
        fi
        ;;
    lint)
        sh scripts/lint.sh
        one lint $?
        ;;
    *)
        echo "test: no stage is called $s" >&2
        exit 2
        ;;
    esac
done

echo "test:$summary"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
