/* SPDX-License-Identifier: MIT */
/* test_prefix [--first S] [--programs N] [--bytes B]: random programs over a prefix index
 * (prefixops.h), numbered by their seeds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "diff/prefixops.h"

static uint64_t draw(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int main(int argc, char **argv)
{
    uint64_t first = 1;
    uint64_t programs = 500;
    size_t bytes = 600;
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned long long v = strtoull(argv[i + 1], NULL, 10);
        first = strcmp(argv[i], "--first") == 0 ? v : first;
        programs = strcmp(argv[i], "--programs") == 0 ? v : programs;
        bytes = strcmp(argv[i], "--bytes") == 0 ? (size_t)v : bytes;
    }
    prefixops_stats st;
    memset(&st, 0, sizeof st);
    uint8_t *program = malloc(bytes ? bytes : 1);
    for (uint64_t p = first; program && p < first + programs; p++) {
        uint64_t s = p;
        for (size_t i = 0; i < bytes; i++) {
            program[i] = (uint8_t)(draw(&s) >> 24);
        }
        if (prefixops_run(program, bytes, &st)) {
            (void)fprintf(stderr, "program %llu, op %llu\n", (unsigned long long)p,
                          (unsigned long long)st.ops);
            return 1;
        }
    }
    free(program);
    (void)printf("%llu programs, %llu ops, %llu hits of %llu tokens, %llu foretold exactly, %llu "
                 "caches equal to cold ones, %llu evictions, %llu cancelled, %llu failed, "
                 "%llu restored, %llu waited, %llu of them proved\n",
                 (unsigned long long)st.programs, (unsigned long long)st.ops,
                 (unsigned long long)st.hits, (unsigned long long)st.hit_tokens,
                 (unsigned long long)st.exact, (unsigned long long)st.equal,
                 (unsigned long long)st.evicted, (unsigned long long)st.cancelled,
                 (unsigned long long)st.failed, (unsigned long long)st.restored,
                 (unsigned long long)st.waits, (unsigned long long)st.stayed);
    return st.hits == 0 || st.equal == 0 ||
           (programs >= 100 && (st.stayed == 0 || st.restored == 0)); /* a test of nothing */
}
