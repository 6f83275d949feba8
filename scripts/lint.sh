#!/bin/sh
# SPDX-License-Identifier: MIT
# lint.sh: format, clang-tidy 14 and cppcheck over the sources; exit status 1 on any finding.
#
# Only the tool versions of Debian 12 count: another clang-format formats differently, so a step
# whose tool is absent or of another version is named and left out.
# Results of clang-tidy are kept by content (source, headers, settings) in build/lint-cache, so that
# a second run looks at what changed only.
set -u
cd "$(dirname "$0")/.." || exit 1

status=0
jobs=${JOBS:-$(nproc)}
git_files() {
    git ls-files -co --exclude-standard -- "$@" 2>/dev/null
}

if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    git_files 'include/*.h' 'src/*.[ch]' 'app/*.[ch]' 'tests/*.[ch]' 'bench/*.[ch]' \
        'examples/*.c' |
        xargs -r clang-format --dry-run --Werror || status=1
else
    echo "lint: clang-format 14 is absent; the format is not checked"
fi

if clang-tidy --version 2>/dev/null | grep -q 'version 14\.'; then
    mkdir -p build/lint-cache
    cmake --preset lint >build/lint-cache/configure.log 2>&1 || {
        cat build/lint-cache/configure.log
        exit 1
    }
    common=$(cat .clang-tidy CMakeLists.txt $(git_files 'include/*.h' 'src/*.h' 'src/*.inc') |
        sha256sum | cut -c1-16)
    git_files 'src/*.c' 'app/*.c' | grep -v '_neon\.c$' >build/lint-cache/files
    xargs -r -n 1 -P "$jobs" sh scripts/tidy1.sh "$common" <build/lint-cache/files || status=1
else
    echo "lint: clang-tidy 14 is absent; it was not run"
fi

if command -v cppcheck >/dev/null 2>&1; then
    cppcheck -q --std=c11 --enable=warning,performance,portability --inline-suppr -j "$jobs" \
        --suppressions-list=scripts/cppcheck.txt --error-exitcode=1 -I include -I src \
        src $(test -n "$(git_files 'app/*.c')" && echo app) || status=1
else
    echo "lint: cppcheck is absent; it was not run"
fi
exit $status
