/* SPDX-License-Identifier: MIT */
/* test_cache_ops.c: random programs against the naive model, in every tier and 1..3 threads.
 * usage: test_cache_ops [first_seed [count [fail]]]   `fail`: the k-th allocation fails, k drawn. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "diff/ops.h"
#include "kvstate/kvstate.h"

#define PROGRAM 240

static uint64_t splitmix(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void write_program(uint64_t seed, uint8_t *p, size_t n)
{
    uint64_t s = seed * 0x2545f4914f6cdd1du + 1;
    for (size_t i = 0; i < n; i++) {
        p[i] = (uint8_t)(splitmix(&s) >> 24);
    }
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 300;
    bool fail = argc > 3 && strcmp(argv[3], "fail") == 0;
    static const uint32_t off[] = {0, KVS_TIER_AVX512, KVS_TIER_ALL};
    ops_stats stats = {0, 0, 0, 0, 0};
    for (uint64_t seed = first; seed < first + count; seed++) {
        uint8_t program[PROGRAM];
        write_program(seed, program, sizeof program);
        uint64_t s = seed;
        uint64_t k = fail ? 1 + splitmix(&s) % 40 : 0;
        if (ops_run(program, sizeof program, off[seed % 3], 1 + (uint32_t)(seed / 3 % 3), k,
                    &stats)) {
            printf("seed %llu disagrees; again with: test_cache_ops %llu 1%s\n",
                   (unsigned long long)seed, (unsigned long long)seed, fail ? " fail" : "");
            return 1;
        }
    }
    printf("%llu programs, %llu ops, %llu reads equal, %llu refusals, digest %016llx\n",
           (unsigned long long)stats.programs, (unsigned long long)stats.ops,
           (unsigned long long)stats.reads, (unsigned long long)stats.refused,
           (unsigned long long)stats.digest);
    return stats.reads == 0;
}
