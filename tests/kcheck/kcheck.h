/* SPDX-License-Identifier: MIT */
/* kcheck.h: the parts of the kernel checker: fenced buffers, test data, cases, bench.
 *
 * A case is a set of buffers and one call. kc_run makes the call with the reference, then with the
 * tier under test in every placement, and compares whole buffers, gaps between rows included. */
#ifndef KCHECK_H
#define KCHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kern/kern.h"

/* -- random numbers: splitmix64, one state a test, so that a case does not depend on the others. */
typedef struct kc_rng {
    uint64_t s;
} kc_rng;
uint64_t kc_u64(kc_rng *r);
uint32_t kc_below(kc_rng *r, uint32_t n);
float kc_normal(kc_rng *r);

/* -- data */
typedef enum kc_data {
    KC_NORMAL,
    KC_UNIFORM,
    KC_HUGE,   /* exponents over the whole range */
    KC_SUB,    /* subnormal */
    KC_ZERO,   /* +0 and -0 */
    KC_CONST,  /* runs of 32 equal values */
    KC_TIES,   /* small multiples of 1/4: encode meets exact halves */
    KC_TINY,   /* up to some 1e-7, differing by run, where the least scale acts */
    KC_SIGNED, /* runs of 32 of one sign */
    KC_N_TAME, /* kinds below this one are finite and do not overflow a sum */
    KC_MIN = KC_N_TAME,
    KC_MAX,
    KC_BITS,    /* any bit pattern */
    KC_SPECIAL, /* normal, one in eight an infinity or a NaN */
    KC_ALL_NAN,
    KC_ALL_INF,
    KC_MIX, /* runs of 32 of any kind above */
    KC_N_DATA
} kc_data;
void kc_fill_f32(kc_rng *r, kc_data kind, float *dst, size_t n);
/* n elements of dtype. */
void kc_fill(kc_rng *r, kc_data kind, kvs_dtype dtype, void *dst, size_t n);
void kc_fill_bytes(kc_rng *r, void *dst, size_t n);

/* -- cases */
enum { KC_BUFS = 6 };

typedef enum kc_compare {
    KC_INPUT,  /* must not change */
    KC_EXACT,  /* an output: memcmp */
    KC_NAN_F32 /* an output of f32 where any NaN equals any other: see docs in kcheck.c */
} kc_compare;

/* Scalar arguments of every kernel; a case uses what its kernel has. */
typedef struct kc_arg {
    size_t n, block, rows, dim, tiles;
    size_t ld0, ld1, ld2;
    uint32_t bits, group;
    kvs_dtype dtype;
    float softcap, f0, f1;
    kc_data data;
} kc_arg;

typedef struct kc_buf {
    size_t bytes;
    size_t elem; /* bytes of an element: what the pointer is aligned to */
    kc_compare compare;
    uint8_t *start; /* contents before the call */
    uint8_t *want;  /* contents after the reference */
    uint8_t *fence; /* the unreadable page; the buffer ends here */
} kc_buf;

typedef void (*kc_call)(const kvs__kern *k, void *const *p, const kc_arg *a);

typedef struct kc {
    const char *kernel;
    const char *tier;
    const kvs__kern *ref;
    const kvs__kern *tested;
    uint64_t seed;
    kc_rng rng;
    kc_buf buf[KC_BUFS];
    size_t n_bufs;
    size_t n_cases;
    size_t n_bad;
} kc;

bool kc_init(kc *t);
void kc_begin(kc *t);
/* A buffer of n elements; returns its contents, to be filled. Outputs begin with random bytes. */
void *kc_buffer(kc *t, kc_compare compare, size_t elem, size_t n);
void kc_run(kc *t, kc_call call, const kc_arg *a);
/* The case that runs, for the fault handler. */
extern char kc_case_name[256];

size_t kc_dtype_bytes(kvs_dtype t);
const char *kc_dtype_name(kvs_dtype t);

#define KVS_KERN(name, class_, ret, args) void kc_check_##name(kc *t);
#include "kern/kern.inc"
#undef KVS_KERN

/* -- bench */
typedef struct kc_bench {
    const char *kernel;
    const char *tier;
    const kvs__kern *k;
    FILE *csv;
    double copy_rate; /* bytes/s, read and written, of memcpy over the same footprint */
    double seconds;   /* for a measurement */
    double elem_rate; /* elements/s that nothing can pass, 0: not known */
} kc_bench;

void kc_bench_init(kc_bench *b);
/* Times `call` on p; elems and bytes (read + written) are those of one call. */
void kc_bench_run(kc_bench *b, const char *what, kc_call call, void *const *p, const kc_arg *a,
                  double elems, double bytes);
void *kc_bench_buffer(size_t slot, size_t bytes); /* 64-byte aligned, filled with tame floats */
double kc_bench_divide_rate(const kc_bench *b);   /* elements/s, with the tier's vectors */
void kc_bench_codec_api(kc_bench *b, uint32_t tiers);

#define KVS_KERN(name, class_, ret, args) void kc_bench_##name(kc_bench *b);
#include "kern/kern.inc"
#undef KVS_KERN

/* -- the long comparison of kvs_codec_encode and _decode with themselves on the reference tier:
 * `count` random values for every (bits, group, dtype). Returns the number of differing values. */
size_t kc_full(uint32_t tiers, const char *tier, uint64_t seed, size_t count);

#endif
