/* SPDX-License-Identifier: MIT */
/* kcheck.c: compares every kernel of every tier this CPU has with the reference, bit for bit.
 *
 *   kcheck [--seed N] [--tier NAME] [--kernel NAME] [--mask TIER] [--bench [--csv FILE]]
 *          [--full [--count N]]
 *
 * One line a kernel and tier: ok, BAD or SKIP with the reason. A tier that the CPU lacks and a
 * kernel that a tier does not have (it runs a lower tier's) are skipped, never passed. --mask (and
 * the variable KVS_TEST_TIERS_OFF, a tier or "all") removes tiers. Exit status: 0; 1 when something
 * failed; 77 when nothing ran. It has a main of its own so that it needs libc alone and runs under
 * an emulator. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "kcheck.h"

typedef struct tier {
    const char *name;
    uint32_t needs; /* what the table is asked for */
    uint32_t bit;   /* the tier itself */
    uint32_t below; /* the tier whose kernels it falls back to */
} tier;

static const tier tiers[] = {
    {"avx2", KVS_TIER_AVX2, KVS_TIER_AVX2, 0},
    {"avx512", KVS_TIER_AVX2 | KVS_TIER_AVX512, KVS_TIER_AVX512, KVS_TIER_AVX2},
    {"neon", KVS_TIER_NEON, KVS_TIER_NEON, 0},
};

typedef void (*any_fn)(void);

typedef struct kernel {
    const char *name;
    size_t slot; /* offset in the table */
    void (*check)(kc *t);
    void (*bench)(kc_bench *b);
} kernel;

static const kernel kernels[] = {
#define KVS_KERN(name, class_, ret, args)                                                          \
    {#name, offsetof(kvs__kern, name), kc_check_##name, kc_bench_##name},
#include "kern/kern.inc"
#undef KVS_KERN
};

typedef struct options {
    uint64_t seed;
    const char *tier;
    const char *kernel;
    uint32_t mask;
    bool bench;
    bool full;
    size_t count;
    const char *csv;
} options;

typedef struct tally {
    size_t passed;
    size_t failed;
    size_t skipped;
} tally;

static any_fn slot_of(const kvs__kern *k, const kernel *which)
{
    any_fn f = NULL;
    memcpy(&f, (const char *)k + which->slot, sizeof f);
    return f;
}

static uint32_t tier_bits(const char *name)
{
    if (strcmp(name, "all") == 0) {
        return KVS_TIER_ALL;
    }
    for (size_t i = 0; i < KVS_COUNT(tiers); i++) {
        if (strcmp(name, tiers[i].name) == 0) {
            return tiers[i].bit;
        }
    }
    return 0;
}

/* Async-signal-safe on purpose: the process is broken. */
static void on_fault(int sig)
{
    static const char head[] = "\n  BAD fault (a read or write outside a buffer?) in ";
    (void)!write(STDOUT_FILENO, head, sizeof head - 1);
    (void)!write(STDOUT_FILENO, kc_case_name, strlen(kc_case_name));
    (void)!write(STDOUT_FILENO, "\n", 1);
    (void)signal(sig, SIG_DFL);
    _exit(1);
}

static void skip(tally *sum, const tier *t, const char *name, const char *why)
{
    (void)printf("SKIP %s/%s: %s\n", t->name, name, why);
    sum->skipped++;
}

static void check_one(kc *t, const options *o, const tier *on, size_t index, tally *sum)
{
    const kernel *k = &kernels[index];
    if (slot_of(t->tested, k) == slot_of(kvs__kern_for(on->below), k)) {
        skip(sum, on, k->name, on->below ? "runs the kernel of the tier below" : "no kernel");
        return;
    }
    t->kernel = k->name;
    t->tier = on->name;
    t->rng.s = o->seed + 0x100000001b3u * (index + 1);
    t->n_cases = 0;
    t->n_bad = 0;
    k->check(t);
    if (t->n_bad == 0 && t->n_cases > 0) {
        (void)printf("ok   %s/%s: %zu cases\n", on->name, k->name, t->n_cases);
        sum->passed++;
    } else {
        (void)printf("BAD  %s/%s: %zu differences in %zu cases\n", on->name, k->name, t->n_bad,
                     t->n_cases);
        sum->failed++;
    }
    (void)fflush(stdout);
}

static bool wanted(const char *filter, const char *name)
{
    return !filter || strcmp(filter, name) == 0;
}

/* Why a tier does not run here, or NULL. */
static const char *why_not(const options *o, const tier *t)
{
    if ((kvs_cpu_tiers() & t->needs) != t->needs) {
        return "this CPU lacks it";
    }
    return o->mask & t->needs ? "masked" : NULL;
}

static void check_all(kc *t, const options *o, tally *sum)
{
    for (size_t i = 0; i < KVS_COUNT(tiers); i++) {
        if (!wanted(o->tier, tiers[i].name)) {
            continue;
        }
        const char *why = why_not(o, &tiers[i]);
        t->ref = kvs__kern_for(0);
        t->tested = kvs__kern_for(why ? 0 : tiers[i].needs);
        for (size_t j = 0; j < KVS_COUNT(kernels); j++) {
            if (!wanted(o->kernel, kernels[j].name)) {
                continue;
            }
            if (why) {
                skip(sum, &tiers[i], kernels[j].name, why);
            } else {
                check_one(t, o, &tiers[i], j, sum);
            }
        }
    }
}

static void bench_tier(kc_bench *b, const options *o, const char *name, uint32_t needs)
{
    b->tier = name;
    b->k = kvs__kern_for(needs);
    for (size_t j = 0; j < KVS_COUNT(kernels); j++) {
        if (wanted(o->kernel, kernels[j].name)) {
            b->kernel = kernels[j].name;
            kernels[j].bench(b);
        }
    }
    if (wanted(o->kernel, "codec")) {
        b->kernel = "codec";
        kc_bench_codec_api(b, needs);
    }
}

static int bench_all(const options *o)
{
    kc_bench b = {0};
    b.csv = o->csv ? fopen(o->csv, "a") : NULL;
    if (o->csv && !b.csv) {
        (void)fprintf(stderr, "kcheck: cannot open %s\n", o->csv);
        return 1;
    }
    kc_bench_init(&b);
    if (wanted(o->tier, "ref")) {
        bench_tier(&b, o, "ref", 0);
    }
    for (size_t i = 0; i < KVS_COUNT(tiers); i++) {
        if (wanted(o->tier, tiers[i].name) && !why_not(o, &tiers[i])) {
            bench_tier(&b, o, tiers[i].name, tiers[i].needs);
        }
    }
    return b.csv && fclose(b.csv) != 0 ? 1 : 0;
}

static void full_all(const options *o, tally *sum)
{
    for (size_t i = 0; i < KVS_COUNT(tiers); i++) {
        if (!wanted(o->tier, tiers[i].name)) {
            continue;
        }
        const char *why = why_not(o, &tiers[i]);
        if (why) {
            skip(sum, &tiers[i], "full", why);
        } else if (kc_full(tiers[i].needs, tiers[i].name, o->seed, o->count) == 0) {
            sum->passed++;
        } else {
            sum->failed++;
        }
    }
}

static int usage(const char *bad)
{
    (void)fprintf(stderr,
                  "kcheck: bad argument \"%s\"\n"
                  "usage: kcheck [--seed N] [--tier avx2|avx512|neon] [--kernel NAME]\n"
                  "              [--mask TIER|all] [--bench [--csv FILE]] [--full [--count N]]\n",
                  bad);
    return 2;
}

static bool known_kernel(const char *name)
{
    for (size_t i = 0; i < KVS_COUNT(kernels); i++) {
        if (strcmp(name, kernels[i].name) == 0) {
            return true;
        }
    }
    return strcmp(name, "codec") == 0; /* bench only */
}

/* A misspelt name must not look like a tier that is skipped. */
static const char *unknown_name(const options *o)
{
    if (o->tier && strcmp(o->tier, "ref") != 0 && !tier_bits(o->tier)) {
        return o->tier;
    }
    return o->kernel && !known_kernel(o->kernel) ? o->kernel : NULL;
}

/* Returns the argument that is wrong, or NULL. */
static const char *parse(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--bench") == 0) {
            o->bench = true;
            continue;
        }
        if (strcmp(a, "--full") == 0) {
            o->full = true;
            continue;
        }
        if (++i == argc) {
            return a;
        }
        if (strcmp(a, "--seed") == 0) {
            o->seed = strtoull(argv[i], NULL, 0);
        } else if (strcmp(a, "--count") == 0) {
            o->count = (size_t)strtoull(argv[i], NULL, 0);
        } else if (strcmp(a, "--tier") == 0) {
            o->tier = argv[i];
        } else if (strcmp(a, "--kernel") == 0) {
            o->kernel = argv[i];
        } else if (strcmp(a, "--csv") == 0) {
            o->csv = argv[i];
        } else if (strcmp(a, "--mask") == 0 && tier_bits(argv[i])) {
            o->mask |= tier_bits(argv[i]);
        } else {
            return a;
        }
    }
    return unknown_name(o);
}

int main(int argc, char **argv)
{
    static kc t; /* large */
    options o = {.seed = 1, .count = 10000000};
    const char *bad = parse(argc, argv, &o);
    if (bad) {
        return usage(bad);
    }
    const char *off = getenv("KVS_TEST_TIERS_OFF"); /* NOLINT(concurrency-mt-unsafe): one thread */
    o.mask |= off && *off ? tier_bits(off) : 0;
    if (o.bench) {
        return bench_all(&o);
    }
    if (!kc_init(&t)) {
        (void)fprintf(stderr, "kcheck: no memory\n");
        return 1;
    }
    (void)signal(SIGSEGV, on_fault);
    (void)signal(SIGBUS, on_fault);
    (void)printf("kcheck: seed %llu\n", (unsigned long long)o.seed);
    tally sum = {0};
    if (o.full) {
        full_all(&o, &sum);
    } else {
        check_all(&t, &o, &sum);
    }
    (void)printf("%zu passed, %zu failed, %zu skipped\n", sum.passed, sum.failed, sum.skipped);
    if (sum.failed > 0) {
        return 1;
    }
    return sum.passed > 0 ? 0 : 77;
}
