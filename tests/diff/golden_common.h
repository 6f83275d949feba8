/* SPDX-License-Identifier: MIT */
/* golden_common.h: what the tests on recorded vectors share: contexts for sets of tiers, element
 * types, and a ledger of comparisons, so that a test that compared nothing cannot end well. */
#ifndef KVS_TESTS_DIFF_GOLDEN_COMMON_H
#define KVS_TESTS_DIFF_GOLDEN_COMMON_H

#include <stdbool.h>

#include "base/half.h"
#include "golden/kvgold.h"
#include "kvstate/kvstate.h"

/* Comparisons made and failed; the first few failures are printed. */
typedef struct ledger {
    uint64_t compared;
    uint64_t failed;
} ledger;

/* Counts one comparison; true when the caller should print what differed. */
static inline bool ledger_fails(ledger *l, bool same)
{
    l->compared++;
    l->failed += same ? 0 : 1;
    return !same && l->failed <= 8;
}

/* Tiers to leave out that make a difference on this CPU, the reference first;
 * KVS_TEST_TIERS_OFF=all keeps only that. Returns how many were written (at most 3). */
static inline size_t golden_tiers_off(uint32_t off[3])
{
    const char *all = getenv("KVS_TEST_TIERS_OFF");
    uint32_t have = kvs_cpu_tiers();
    size_t n = 0;
    off[n++] = KVS_TIER_ALL;
    if ((all == NULL || strcmp(all, "all") != 0) && have != 0) {
        off[n++] = 0;
        if (have & KVS_TIER_AVX512) {
            off[n++] = KVS_TIER_AVX512;
        }
    }
    return n;
}

static inline kvs_ctx *golden_ctx(uint32_t tiers_off, uint32_t threads)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.tiers_off = tiers_off;
    opts.n_threads = threads;
    kvs_ctx *ctx = NULL;
    kvs_err err;
    if (kvs_ctx_new(&opts, &ctx, &err) != KVS_OK) {
        gold_die("no context", err.msg);
    }
    return ctx;
}

static inline void golden_must(kvs_status s, const kvs_err *err)
{
    if (s != KVS_OK) {
        gold_die("the library refused", err->msg);
    }
}

/* By kvs_dtype, whose values are those of gold_type. */
static inline const char *golden_type_name(kvs_dtype t)
{
    static const char *const names[] = {"f32", "f16", "bf16"};
    return names[t];
}

static inline kvs_dtype golden_dtype(const char *name)
{
    for (int t = 0; t < 3; t++) {
        if (strcmp(name, golden_type_name((kvs_dtype)t)) == 0) {
            return (kvs_dtype)t;
        }
    }
    gold_die("no such type", name);
    return KVS_F32;
}

static inline size_t golden_size(kvs_dtype t)
{
    return t == KVS_F32 ? 4 : 2;
}

static inline uint32_t golden_bits(const void *p, kvs_dtype t, size_t i)
{
    uint32_t u = 0;
    uint16_t h = 0;
    if (t == KVS_F32) {
        memcpy(&u, (const unsigned char *)p + 4 * i, 4);
        return u;
    }
    memcpy(&h, (const unsigned char *)p + 2 * i, 2);
    return h;
}

static inline float golden_load(const void *p, kvs_dtype t, size_t i)
{
    uint32_t u = golden_bits(p, t, i);
    if (t == KVS_F32) {
        return kvs__f32_bits(u);
    }
    return t == KVS_F16 ? kvs__f16_to_f32((uint16_t)u) : kvs__bf16_to_f32((uint16_t)u);
}

static inline void golden_store(void *p, kvs_dtype t, size_t i, float x)
{
    uint32_t u = kvs__bits_f32(x);
    if (t == KVS_F32) {
        memcpy((unsigned char *)p + 4 * i, &u, 4);
        return;
    }
    uint16_t h = t == KVS_F16 ? kvs__f16_from_f32(x) : kvs__bf16_from_f32(x);
    memcpy((unsigned char *)p + 2 * i, &h, 2);
}

static inline bool golden_is_nan(uint32_t bits, kvs_dtype t)
{
    static const uint32_t sign[] = {0x80000000u, 0x8000u, 0x8000u};
    static const uint32_t inf[] = {0x7f800000u, 0x7c00u, 0x7f80u};
    return (bits & ~sign[t]) > inf[t];
}

static inline void *golden_alloc(size_t bytes)
{
    void *p = malloc(bytes > 0 ? bytes : 1);
    if (p == NULL) {
        gold_die("no memory", "test");
    }
    return p;
}

#endif
