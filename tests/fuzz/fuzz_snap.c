/* SPDX-License-Identifier: MIT */
/* fuzz_snap.c: saved state of any content, restored into a cache of two layers. What the store proves is
 * that the bytes are those that were written, not that they make sense: every table must be refused
 * or give a cache of the tokens it promises.
 *
 * Byte 0: bits 0 and 1 choose the layout of the second layer; bit 2 centres its keys; bit 3 makes it
 * recurrent; bit 4 makes the first one recurrent, too; bit 5 writes version 1; bit 6 fills each part with its number, so that
 * centres differ; bit 7 takes the rest as the table itself. Then u16 tokens wanted, u16 tokens of the entry, and 8 bytes for each run:
 * layer, form, first and end position (u16), part, and what its part has more or less than it needs (i8). */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvstate/recurrent.h"
#include "store/snap.h"
#include "support/memfs.h"

#define MAX_RUNS 16
#define PART_MAX ((size_t)64 << 10)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* store/kvstore.h, which has a name of the kernels' too */
kvs_status kvs__store_open_vfs(kvs_ctx *ctx, kvs__vfs *v, const char *dir,
                               const kvs_store_opts *opts, kvs_store **out, kvs_err *err);

static kvs_layer_spec recurrent(kvs_recurrent_spec *r, unsigned i)
{
    kvs_layer_spec l = KVS_LAYER_SPEC_INIT;
    *r = (kvs_recurrent_spec)KVS_RECURRENT_SPEC_INIT;
    r->rule = i ? KVS_RECURRENT_SSD : KVS_RECURRENT_GATED_DELTA;
    r->n_heads = 2;
    r->n_groups = 1;
    r->head_dim = 3;
    r->state_dim = 4;
    r->conv_dim = i ? 5 : 0;
    r->conv_taps = i ? 4 : 0;
    r->conv_dtype = KVS_BF16;
    r->undo_tokens = i ? 4 : 0;
    l.kind = KVS_LAYER_RECURRENT;
    l.recurrent = r;
    return l;
}

static kvs_cache *make_cache(kvs_ctx *ctx, unsigned which)
{
    kvs_recurrent_spec r[2];
    kvs_layer_spec l[2] = {KVS_LAYER_SPEC_INIT, KVS_LAYER_SPEC_INIT};
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    for (int i = 0; i < 2; i++) {
        l[i].n_kv_heads = 1;
        l[i].k_dim = l[i].v_dim = 16;
    }
    if (which & 3) {
        l[1].layout = which & 1 ? KVS_LAYOUT_RING : KVS_LAYOUT_PAGED;
        l[1].window = 20;
        l[1].sinks = which & 1 ? 4 : 0;
        l[1].max_block = 16;
        l[1].dense_until = (which & 3) == 3 ? 40 : 0;
        l[1].dense_dtype = KVS_F32;
    }
    if (which & 4) {
        l[1].k_dim = 32;
        l[1].k = (kvs_codec){4, KVS_ROTATED | KVS_CENTERED, 32, KVS_F16};
    }
    for (unsigned i = 0; i < 2; i++) {
        if (which & (i ? 8 : 16)) {
            l[i] = recurrent(&r[i], i);
        }
    }
    o.n_layers = 2;
    o.layers = l;
    o.block_tokens = 16;
    return kvs_cache_new(ctx, &o, &c, NULL) == KVS_OK ? c : NULL;
}

static unsigned u16(const uint8_t *p)
{
    return (unsigned)p[0] | (unsigned)p[1] << 8;
}

static void put32(uint8_t *p, uint32_t x)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(x >> 8 * i);
    }
}

/* What a run needs. */
static size_t run_bytes(const kvs__layer *l, unsigned form, unsigned lo, unsigned end)
{
    size_t need = 0;
    if (l->rec) {
        const kvs_recurrent_spec *s = &l->rec->spec;
        size_t tail = s->conv_dim ? (s->conv_taps - 1) * (size_t)s->conv_dim * 2 : 0;
        size_t state = (size_t)s->n_heads * s->head_dim * s->state_dim * 4;
        return (tail + 7) / 8 * 8 + (state + 7) / 8 * 8;
    }
    while (lo < end && need < PART_MAX) {
        unsigned hi = lo - lo % 256 + 256;
        hi = hi < end ? hi : end;
        need += kvs__hblock_bytes(form ? &l->early.fmt : &l->main.fmt, lo, hi - lo);
        lo = hi;
    }
    return need;
}

/* Table of version *n_parts, and sizes of parts 1 .. *n_parts, from the short form. */
static size_t make_table(const kvs_cache *c, const uint8_t *p, size_t n, uint8_t *t, size_t *bytes,
                         uint32_t *n_parts)
{
    uint32_t runs = 0;
    memset(t, 0, KVS__SNAP_HEADER);
    memcpy(t, KVS__SNAP_MAGIC, 8);
    put32(t + 8, *n_parts);
    put32(t + 12, KVS__HISTORY_BLOCK);
    put32(t + 16, n >= 2 ? u16(p) : 0);
    put32(t + 24, 2);
    for (size_t at = 2; at + 8 <= n && runs < MAX_RUNS; at += 8, runs++) {
        const uint8_t *r = p + at;
        uint8_t *to = t + KVS__SNAP_HEADER + (size_t)runs * KVS__SNAP_RUN;
        const kvs__layer *l = &c->layer[r[0] & 1];
        size_t need = run_bytes(l, r[1], u16(r + 2), u16(r + 4));
        memset(to, 0, KVS__SNAP_RUN);
        put32(to, r[0]);
        put32(to + 4, r[1]);
        put32(to + 8, u16(r + 2));
        put32(to + 16, u16(r + 4));
        put32(to + 24, r[6]);
        need += (size_t)(int8_t)r[7];
        bytes[runs] = need < PART_MAX ? need : 0;
    }
    put32(t + 28, runs);
    *n_parts = runs;
    return KVS__SNAP_HEADER + (size_t)runs * KVS__SNAP_RUN;
}

static void try_restore(kvs_ctx *ctx, kvs_cache *c, kvs_store *s, kvs_entry e, uint64_t want)
{
    kvs__history *h = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs__history_new(ctx, c, 1 << 20, &h, NULL) != KVS_OK || kvs_store_pin(s, e) != KVS_OK) {
        abort();
    }
    uint64_t probed = want;
    uint64_t n = want;
    kvs_status a = kvs__history_probe(h, s, e, &probed, &err);
    kvs_status b = kvs__history_restore(h, s, e, &n, &err);
    if (a == KVS_OK && b == KVS_OK) {
        if (n != probed || n == 0 || n > want || kvs_cache_length(c, 0) != (int64_t)n ||
            kvs_cache_length(c, 1) != (int64_t)n) {
            abort();
        }
        kvs__saved saved; /* and it can be saved again */
        if (kvs__history_copy(h, 0, &saved, &err) != KVS_OK || saved.len != n) {
            abort();
        }
        kvs__saved_free(&saved);
    } else {
        /* the probe reads no part: only there do centres differ */
        bool centred = c->layer[1].main.fmt.center_bytes > 0 && b == KVS_E_FORMAT;
        if ((a == KVS_OK) != (b == KVS_OK) && !(a == KVS_OK && centred)) {
            abort();
        }
        (void)kvs_store_unpin(s, e);
    }
    kvs__history_free(h);
}

static void put_and_restore(kvs_ctx *ctx, kvs_cache *c, kvs_store *s, const uint8_t *data,
                            size_t size)
{
    static uint8_t fill[MAX_RUNS + 1][PART_MAX];
    static uint8_t table[KVS__SNAP_HEADER + MAX_RUNS * KVS__SNAP_RUN];
    size_t bytes[MAX_RUNS] = {0};
    kvs_store_part parts[MAX_RUNS + 1];
    uint32_t n_parts = 3;
    size_t n_table = size - 3;
    const uint8_t *t = data + 3;
    for (uint32_t i = 0; i <= MAX_RUNS; i++) {
        memset(fill[i], data[0] & 0x40 ? (int)i : 0, PART_MAX);
    }
    if (!(data[0] & 0x80)) {
        n_parts = data[0] & 0x20 ? 1 : KVS__SNAP_VERSION;
        n_table = make_table(c, data + 3, size - 3, table, bytes, &n_parts);
        t = table;
    } else {
        bytes[0] = bytes[1] = bytes[2] = 4096;
    }
    parts[0] = (kvs_store_part){"state", 0, -1, n_table, t, 0, 0, NULL, NULL};
    for (uint32_t i = 0; i < n_parts; i++) {
        parts[i + 1] = (kvs_store_part){"kv", 0, 0, bytes[i], fill[i], 0, 0, NULL, NULL};
    }
    static const uint8_t identity[32] = {1};
    const int32_t ids[1] = {1};
    kvs_store_key key = {identity, "", 0, ids, 1};
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    kvs_entry e = 0;
    kvs_entry_info info = KVS_ENTRY_INFO_INIT;
    o.flags = KVS_PUT_DURABLE;
    if (kvs_store_put(s, &key, parts, n_parts + 1, &o, NULL) == KVS_OK &&
        kvs_store_list(s, &e, &info) == KVS_OK) {
        try_restore(ctx, c, s, info.entry, u16(data + 1));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4 || size > 4096) {
        return 0;
    }
    memfs *m = memfs_new();
    kvs_ctx *ctx = NULL;
    kvs_store *s = NULL;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    co.n_threads = 1;
    co.max_bytes = 64u << 20;
    o.flags = KVS_STORE_NO_THREADS;
    memfs_link(m, ".", memfs_new_inode(m, true, 0700));
    if (kvs_ctx_new(&co, &ctx, NULL) != KVS_OK ||
        kvs__store_open_vfs(ctx, &m->v, "d", &o, &s, NULL) != KVS_OK) {
        abort();
    }
    kvs_cache *c = make_cache(ctx, data[0]);
    if (c) {
        put_and_restore(ctx, c, s, data, size);
    }
    kvs_cache_free(c);
    kvs_store_close(s);
    kvs_ctx_free(ctx);
    memfs_free(m);
    return 0;
}
