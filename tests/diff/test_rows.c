/* SPDX-License-Identifier: MIT */
/* test_rows.c: random programs over sets of rows against the naive model, in every tier.
 * usage: test_rows [--programs N] [--first SEED]      (docs/mutants.md tells what a million take) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "diff/rowops.h"
#include "kvstate/kvstate.h"

#define PROGRAM 160

static uint64_t splitmix(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int main(int argc, char **argv)
{
    static const uint32_t off[] = {0, KVS_TIER_AVX512, KVS_TIER_ALL};
    uint64_t first = 1;
    uint64_t count = 3000;
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t *to = strcmp(argv[i], "--first") == 0 ? &first : &count;
        *to = strtoull(argv[i + 1], NULL, 10);
    }
    rowops_stats t;
    memset(&t, 0, sizeof t);
    for (uint64_t seed = first; seed < first + count; seed++) {
        uint8_t program[PROGRAM];
        uint64_t s = seed * 0x2545f4914f6cdd1du + 1;
        for (size_t i = 0; i < sizeof program; i++) {
            program[i] = (uint8_t)(splitmix(&s) >> 24);
        }
        if (rowops_run(program, sizeof program, off[seed % 3], &t)) {
            printf("seed %llu disagrees; again with: test_rows --first %llu --programs 1\n",
                   (unsigned long long)seed, (unsigned long long)seed);
            return 1;
        }
    }
    printf("%llu programs, %llu ops, %llu reads and %llu replays equal, %llu rounds, %llu tokens "
           "rejected, %llu forks, %llu failed allocations, %llu refusals, digest %016llx\n",
           (unsigned long long)t.programs, (unsigned long long)t.ops, (unsigned long long)t.reads,
           (unsigned long long)t.replays, (unsigned long long)t.rounds,
           (unsigned long long)t.rejected, (unsigned long long)t.forks,
           (unsigned long long)t.failures, (unsigned long long)t.refused,
           (unsigned long long)t.digest);
    return t.reads == 0 || t.rounds == 0 || t.forks == 0;
}
