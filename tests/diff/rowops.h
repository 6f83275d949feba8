/* SPDX-License-Identifier: MIT */
/* rowops.h: a byte string as a program over sets of rows, run against the naive model. */
#ifndef KVS_TESTS_DIFF_ROWOPS_H
#define KVS_TESTS_DIFF_ROWOPS_H

#include <stddef.h>
#include <stdint.h>

typedef struct rowops_stats {
    uint64_t programs;
    uint64_t ops;
    uint64_t reads;    /* attention reads equal to the naive model, bit for bit */
    uint64_t replays;  /* rows equal to a cache of their own, byte for byte */
    uint64_t rounds;   /* resolved or aborted */
    uint64_t rejected; /* tokens taken back by rounds */
    uint64_t forks;
    uint64_t failures; /* allocations refused, the state unchanged, the call repeated */
    uint64_t refused;  /* calls that had to be refused and were */
    uint64_t digest;   /* of all outputs, to compare two runs */
} rowops_stats;

/* 0: agrees. Otherwise 1, after printing the op and what differs. */
int rowops_run(const uint8_t *program, size_t n, uint32_t tiers_off, rowops_stats *stats);

#endif
