/* SPDX-License-Identifier: MIT */
/* rowops_rig.c: see rowops_rig.h. */
#include "diff/rowops_rig.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/half.h"

uint32_t byte(run *r)
{
    if (r->n == 0) {
        return 0;
    }
    r->n--;
    return *r->p++;
}

int report(const run *r, const char *what, const char *detail)
{
    (void)fprintf(stderr, "op %llu: %s: %s\n", (unsigned long long)r->op, what, detail);
    return 1;
}

/* -- tokens: their keys and values, and the model that reads them */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void token_values(const run *r, uint32_t layer, int side, const uint32_t *tok, uint32_t n,
                         float *dst)
{
    uint32_t f = r->heads[layer] * (side ? r->v_dim[layer] : r->k_dim[layer]);
    for (uint32_t t = 0; t < n; t++) {
        uint64_t s = mix(((uint64_t)tok[t] << 8) + layer * 2 + (uint32_t)side + 1);
        for (uint32_t i = 0; i < f; i++) {
            s += 0x9e3779b97f4a7c15u;
            *dst++ = (float)((int64_t)(mix(s) >> 40) - (1 << 23)) * 0x1p-22f;
        }
    }
}

kvs_kv token_kv(run *r, uint32_t layer, const uint32_t *tok, uint32_t n)
{
    token_values(r, layer, 0, tok, n, r->k);
    token_values(r, layer, 1, tok, n, r->v);
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = r->k;
    kv.v = r->v;
    return kv;
}

uint32_t source_of(const run *r, uint32_t layer)
{
    return r->borrow[layer] ? layer - 1 : layer;
}

static uint32_t block_of(const kvs_layer_spec *s)
{
    uint32_t b = s->max_block ? s->max_block : 1;
    bool paged = s->layout == KVS_LAYOUT_PAGED && s->window > 0;
    return paged || s->layout == KVS_LAYOUT_RING ? b : 64;
}

uint32_t row_block(const run *r, const row *m)
{
    uint32_t most = 64;
    for (uint32_t i = 0; i < r->n_layers; i++) {
        uint32_t b = r->rec[i] ? m->rec[i].undo_tokens : block_of(&m->spec[source_of(r, i)]);
        most = b < most ? b : most;
    }
    return most;
}

static void load_model(run *r, const row *m, uint32_t layer)
{
    uint32_t src = source_of(r, layer);
    kvs_kv kv = token_kv(r, src, m->tok, m->n);
    r->model.spec = m->spec[src];
    model_clear(&r->model);
    model_append(&r->model, m->n, kv.k, kv.v);
    r->model.high = m->high;
}

/* One read of the newest tokens; *st is its status, compared with the model where it is KVS_OK. */
int read_and_compare(run *r, kvs_cache *c, kvs_view *view, const row *m, uint32_t layer,
                     uint32_t n_queries)
{
    static float q[8 * 4 * MAX_DIM];
    static float got[8 * 4 * MAX_DIM];
    static float want[8 * 4 * MAX_DIM];
    uint32_t src = source_of(r, layer);
    const kvs_layer_spec *s = &m->spec[src];
    kvs_attend d = KVS_ATTEND_INIT;
    d.n_queries = n_queries;
    d.n_q_heads = r->heads[src] * 2;
    d.q = q;
    d.out = got;
    d.scale = 0.25f;
    uint64_t z = r->op;
    for (uint32_t i = 0; i < n_queries * d.n_q_heads * s->k_dim; i++) {
        z += 0x9e3779b97f4a7c15u;
        q[i] = (float)((int64_t)(mix(z) >> 40) - (1 << 23)) * 0x1p-22f;
    }
    kvs_status st = view ? kvs_view_attend(view, &d, NULL) : kvs_cache_attend(c, layer, &d, NULL);
    if (m->n == 0) {
        CHECK(st == KVS_E_STATE, "read of an empty row");
        return 0;
    }
    load_model(r, m, layer);
    d.q_pos = (int64_t)m->n - (int64_t)n_queries;
    int64_t dense = (int64_t)s->dense_until;
    bool early_gone = dense > 0 && d.q_pos < dense && (int64_t)m->high > dense;
    if (st == KVS_E_RANGE && model_may_miss(&r->model, d.q_pos)) {
        return 0;
    }
    if (st == KVS_E_STATE && early_gone && (n_queries > 1 || m->back)) {
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    model_attend(&r->model, &d, q, NULL, NULL, want);
    size_t n = (size_t)n_queries * d.n_q_heads * s->v_dim;
    for (size_t i = 0; i < n; i++) {
        r->stats->digest = (r->stats->digest ^ kvs__bits_f32(got[i])) * 0x100000001b3u;
    }
    CHECK(memcmp(got, want, n * sizeof *got) == 0, "a read differs from the model");
    r->stats->reads++;
    return 0;
}

kvs_status new_cache(const run *r, kvs_ctx *ctx, const row *m, uint64_t reserve, kvs_cache **out)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_layer_spec spec[MAX_LAYERS];
    memcpy(spec, m->spec, sizeof spec);
    for (uint32_t i = 0; i < r->n_layers; i++) {
        spec[i].recurrent = r->rec[i] ? &m->rec[i] : NULL;
    }
    o.n_layers = r->n_layers;
    o.layers = spec;
    o.reserve_tokens = reserve;
    o.pages = ctx == r->ctx ? r->pages : NULL;
    return kvs_cache_new(ctx, &o, out, NULL);
}

/* -- a row is what a cache of its own would be */

static size_t plane_row(const kvs_layer_spec *s, bool dense, int side, int plane)
{
    kvs_codec c = side ? s->v : s->k;
    if (dense) {
        c = (kvs_codec){0, 0, 0, s->dense_dtype};
    }
    size_t dim = side ? s->v_dim : s->k_dim;
    size_t eb = c.dtype == KVS_F32 ? 4 : 2;
    if (plane == 0) {
        return c.bits ? dim * c.bits / 8 : dim * eb;
    }
    return c.bits ? dim / c.group * eb : 0;
}

static int same_bytes(run *r, const row *m, const kvs_cache *a, const kvs_cache *b, uint32_t layer)
{
    static uint32_t buf[2][6][MAX_TOKENS * MAX_HEADS * MAX_DIM];
    const kvs_layer_spec *s = &m->spec[source_of(r, layer)];
    int64_t from = kvs_cache_oldest(a, layer);
    int64_t other = kvs_cache_oldest(b, layer);
    from = from > other ? from : other;
    if (from >= (int64_t)m->n || (m->back && s->dense_until == m->n)) {
        return 0;
    }
    uint64_t n = (uint64_t)((int64_t)m->n - from);
    bool dense = m->n <= s->dense_until;
    for (int x = 0; x < 2; x++) {
        kvs_planes p = KVS_PLANES_INIT;
        for (int i = 0; i < 6; i++) {
            void **at = i < 3 ? p.k : p.v;
            at[i % 3] = plane_row(s, dense, i / 3, i % 3) ? buf[x][i] : NULL;
        }
        kvs_status st = kvs_cache_export(x ? b : a, layer, from, n, &p, NULL);
        CHECK(st == KVS_OK, kvs_status_name(st));
    }
    for (int i = 0; i < 6; i++) {
        size_t bytes = plane_row(s, dense, i / 3, i % 3) * n * s->n_kv_heads;
        CHECK(memcmp(buf[0][i], buf[1][i], bytes) == 0, "bytes of a row and of its replay");
    }
    return 0;
}

/* -- recurrent layers */

/* The tokens of m, then n more, in a layer of its own; y [n][value] of the last ones or NULL. */
static int lone_layer(run *r, const row *m, uint32_t layer, uint32_t n, float *y, kvs_cache **out)
{
    uint64_t ids[MAX_TOKENS];
    kvs_recurrent_spec rec = m->rec[layer];
    kvs_layer_spec spec = KVS_LAYER_SPEC_INIT;
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    rec.undo_tokens = 0;
    rec.undo_interval = 0;
    spec.kind = KVS_LAYER_RECURRENT;
    spec.recurrent = &rec;
    o.n_layers = 1;
    o.layers = &spec;
    for (uint32_t i = 0; i < m->n + n; i++) {
        ids[i] = m->tok[i];
    }
    CHECK(kvs_cache_new(r->plain, &o, out, NULL) == KVS_OK, "a layer of its own");
    uint32_t block = 1 + (uint32_t)(r->op % 9);
    size_t value = rec_sizes_of(&rec).value;
    float *some = malloc((block * value + 1) * sizeof *some);
    if (!some) {
        abort();
    }
    for (uint32_t at = 0; at < m->n; at += block) {
        uint32_t k = m->n - at < block ? m->n - at : block;
        CHECK(rec_drive(*out, 0, &r->rec_w[layer], ids + at, k, NULL, some, NULL) == KVS_OK,
              "a layer of its own");
    }
    free(some);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(rec_drive(*out, 0, &r->rec_w[layer], ids + m->n + i, 1, NULL, y + i * value, NULL) ==
                  KVS_OK,
              "a layer of its own");
    }
    return 0;
}

int same_state(run *r, const kvs_cache *c, const row *m, uint32_t layer)
{
    kvs_cache *lone = NULL;
    if (lone_layer(r, m, layer, 0, NULL, &lone)) {
        return 1;
    }
    size_t n[2];
    if (m->n == 0) {
        kvs_cache_free(lone);
        return 0;
    }
    void *a = rec_export(c, layer, (int64_t)m->n, &n[0]);
    void *b = rec_export(lone, 0, (int64_t)m->n, &n[1]);
    bool same = n[0] == n[1] && memcmp(a, b, n[0]) == 0;
    free(a);
    free(b);
    kvs_cache_free(lone);
    CHECK(same, "state of a recurrent layer");
    r->stats->reads++;
    return 0;
}

kvs_status append_rec(run *r, kvs_cache *c, const row *m, uint32_t layer, uint32_t n, int *bad)
{
    static float y[2][64 * 64];
    uint64_t ids[64];
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = m->tok[m->n + i];
    }
    kvs_status st = rec_drive(c, layer, &r->rec_w[layer], ids, n, NULL, y[0], NULL);
    if (st != KVS_OK || r->op % 3 != 0) {
        return st;
    }
    kvs_cache *lone = NULL;
    *bad = lone_layer(r, m, layer, n, y[1], &lone);
    kvs_cache_free(lone);
    size_t bytes = n * rec_sizes_of(&m->rec[layer]).value * sizeof(float);
    if (!*bad && memcmp(y[0], y[1], bytes) != 0) {
        *bad = report(r, "a recurrent layer gives out", "what another would not");
    }
    r->stats->reads++;
    return st;
}

int replay(run *r, kvs_cache *c, const row *m)
{
    kvs_cache *solo = NULL;
    CHECK(new_cache(r, r->plain, m, 0, &solo) == KVS_OK, "replay");
    uint32_t block = row_block(r, m);
    for (uint32_t at = 0; at < m->n; at += block) {
        uint32_t n = m->n - at < block ? m->n - at : block;
        for (uint32_t i = 0; i < r->n_layers; i++) {
            kvs_kv kv = token_kv(r, i, m->tok + at, n);
            CHECK(r->borrow[i] || r->rec[i] || kvs_cache_append(solo, i, &kv, NULL) == KVS_OK,
                  "replay");
        }
    }
    int bad = 0;
    for (uint32_t i = 0; !bad && i < r->n_layers; i++) {
        bad = r->rec[i] ? same_state(r, c, m, i) : same_bytes(r, m, c, solo, i);
    }
    kvs_cache_free(solo);
    r->stats->replays++;
    return bad;
}
