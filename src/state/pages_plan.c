/* SPDX-License-Identifier: MIT */
/* pages_plan.c: how many bytes a pool needs for given rows: the blocks of each format at the worst
 * moment, in whole chunks. Layers of one format share chunks, so they are counted together. */
#include "state/pages_priv.h"

/* Store j of the layers in a row: main, then early of each; false where there is none. */
static kvs_status read_store(const kvs_cache_opts *o, uint32_t j, uint64_t n_tokens,
                             kvs__store *out, uint64_t *blocks, kvs_err *err)
{
    kvs__layer l;
    *blocks = 0;
    kvs_status st = kvs__cache_read_layer(o, j / 2, &l, err);
    if (st == KVS_OK && l.spec.layout != KVS_LAYOUT_PAGED) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "layer %u is not paged", j / 2);
    }
    if (st != KVS_OK) {
        return st;
    }
    uint64_t until = l.spec.dense_until;
    if (j % 2 == 0) {
        *out = l.main;
        *blocks = n_tokens > until ? kvs__paged_peak(out, n_tokens) : 0;
    } else if (until > 0) {
        *out = l.early;
        *blocks = kvs__paged_peak(out, n_tokens < until ? n_tokens : until);
    }
    return KVS_OK;
}

/* Blocks of the format of store j in one row; 0 where an earlier store has the format. */
static kvs_status count_format(const kvs_cache_opts *o, uint32_t j, uint64_t n_tokens,
                               kvs__fmt *fmt, uint64_t *sum, kvs_err *err)
{
    kvs__store mine;
    kvs__store other;
    uint64_t n = 0;
    *sum = 0;
    kvs_status st = read_store(o, j, n_tokens, &mine, &n, err);
    if (st != KVS_OK || n == 0) {
        return st;
    }
    *fmt = mine.fmt;
    for (uint32_t i = 0; i < 2 * o->n_layers; i++) {
        st = read_store(o, i, n_tokens, &other, &n, err);
        if (st != KVS_OK) {
            return st;
        }
        if (n > 0 && kvs__fmt_same(&mine.fmt, &other.fmt)) {
            if (i < j) {
                *sum = 0;
                return KVS_OK;
            }
            *sum += n;
        }
    }
    return KVS_OK;
}

kvs_status kvs_pages_plan(const kvs_pages_opts *pages_opts, const kvs_cache_opts *cache_opts,
                          uint32_t n_rows, uint64_t n_tokens, size_t *bytes, kvs_err *err)
{
    if (!bytes) {
        return kvs__fail(err, KVS_E_INVAL, "state", "bytes is NULL");
    }
    kvs_pages_opts p = KVS_PAGES_OPTS_INIT;
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_status st = kvs__cache_read_opts(cache_opts, &o, err);
    st = st == KVS_OK ? kvs__pages_read_opts(pages_opts, &p, err) : st;
    if (st == KVS_OK && n_tokens > (uint64_t)INT64_MAX / 4) {
        st = kvs__fail(err, KVS_E_RANGE, "state", "%llu tokens are too many",
                       (unsigned long long)n_tokens);
    }
    size_t sum = kvs__pages_head();
    o.pages = NULL;
    o.block_tokens = p.block_tokens;
    for (uint32_t j = 0; st == KVS_OK && j < 2 * o.n_layers; j++) {
        kvs__fmt fmt;
        uint64_t n = 0;
        size_t one = 0;
        st = count_format(&o, j, n_tokens, &fmt, &n, err);
        if (st == KVS_OK && n > 0 &&
            (__builtin_mul_overflow(n, n_rows, &n) || !kvs__pages_need(&p, &fmt, n, &one) ||
             !kvs__add_size(sum, one, &sum))) {
            st = kvs__fail(err, KVS_E_RANGE, "state", "%u rows of %llu tokens overflow", n_rows,
                           (unsigned long long)n_tokens);
        }
    }
    if (st == KVS_OK) {
        *bytes = sum;
    }
    return st;
}
