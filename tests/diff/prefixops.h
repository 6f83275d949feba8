/* SPDX-License-Identifier: MIT */
/* prefixops.h: a byte string as a program over a prefix index and real caches, against a naive list
 * of what was published and cold computation of every prompt. */
#ifndef KVS_TESTS_DIFF_PREFIXOPS_H
#define KVS_TESTS_DIFF_PREFIXOPS_H

#include <stddef.h>
#include <stdint.h>

typedef struct prefixops_stats {
    uint64_t programs;
    uint64_t ops;
    uint64_t hits;
    uint64_t hit_tokens;
    uint64_t exact;  /* lookups whose length the naive list foretold exactly */
    uint64_t equal;  /* caches equal to a cold one, byte for byte */
    uint64_t failed; /* calls that an allocation failed */
    uint64_t evicted;
    uint64_t cancelled;
    uint64_t restored; /* publications of caches that were read back */
    uint64_t waits;    /* texts that waited to the end */
    uint64_t stayed;   /* of these, those that had to be there then, and were */
} prefixops_stats;

/* 0: agrees. Otherwise 1, after printing what differs. */
int prefixops_run(const uint8_t *program, size_t n, prefixops_stats *stats);

#endif
