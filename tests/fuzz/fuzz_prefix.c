/* SPDX-License-Identifier: MIT */
/* fuzz_prefix.c: the input is a program over a prefix index (diff/prefixops.h). A disagreement with
 * the naive list or with cold computation traps. */
#include <stddef.h>
#include <string.h>

#include "diff/prefixops.h"
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    prefixops_stats stats;
    memset(&stats, 0, sizeof stats);
    if (size > 2048) {
        return 0;
    }
    if (prefixops_run(data, size, &stats)) {
        __builtin_trap();
    }
    return 0;
}
