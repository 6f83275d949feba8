/* SPDX-License-Identifier: MIT */
/* fuzz_cache_ops.c: the input is an op program (diff/ops.h): its first byte chooses tiers, threads
 * and a failing allocation. A disagreement with the naive model traps. */
#include <stddef.h>

#include "diff/ops.h"
#include "fuzz/fuzz.h"
#include "kvstate/kvstate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t off[] = {0, KVS_TIER_AVX512, KVS_TIER_ALL};
    ops_stats stats = {0, 0, 0, 0, 0};
    if (size < 2 || size > 1024) {
        return 0;
    }
    uint64_t fail = data[0] >> 4 ? (uint64_t)(data[0] >> 4) * 3 : 0;
    if (ops_run(data + 1, size - 1, off[data[0] % 3], 1 + data[0] / 3 % 2, fail, &stats)) {
        __builtin_trap();
    }
    return 0;
}
