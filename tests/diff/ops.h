/* SPDX-License-Identifier: MIT */
/* ops.h: a byte string as a program over one cache, run against the naive model. */
#ifndef KVS_TESTS_DIFF_OPS_H
#define KVS_TESTS_DIFF_OPS_H

#include <stddef.h>
#include <stdint.h>

typedef struct ops_stats {
    uint64_t programs;
    uint64_t ops;
    uint64_t reads;   /* attention reads compared bit for bit */
    uint64_t refused; /* calls that had to fail and did, the state unchanged */
    uint64_t digest;  /* of all outputs, to compare two runs */
} ops_stats;

/* 0: agrees. Otherwise 1, after printing the op, both sides and the way to run it again. `fail_at`:
 * the allocation (counted from the start of the first op) that fails, 0: none; the program then
 * checks that the call failed with KVS_E_NOMEM, changed nothing, and carries on. */
int ops_run(const uint8_t *program, size_t n, uint32_t tiers_off, uint32_t n_threads,
            uint64_t fail_at, ops_stats *stats);

#endif
