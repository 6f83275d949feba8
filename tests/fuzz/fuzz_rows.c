/* SPDX-License-Identifier: MIT */
/* fuzz_rows.c: the input is a program over sets of rows (diff/rowops.h); its first byte chooses the
 * tier. A disagreement with the naive model traps. */
#include <stddef.h>
#include <string.h>

#include "diff/rowops.h"
#include "fuzz/fuzz.h"
#include "kvstate/kvstate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t off[] = {0, KVS_TIER_AVX512, KVS_TIER_ALL};
    rowops_stats stats;
    memset(&stats, 0, sizeof stats);
    if (size < 2 || size > 1024) {
        return 0;
    }
    if (rowops_run(data + 1, size - 1, off[data[0] % 3], &stats)) {
        __builtin_trap();
    }
    return 0;
}
