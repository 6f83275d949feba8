/* SPDX-License-Identifier: MIT */
/* ops.c: see ops.h. Every op is followed by the invariants: lengths and bytes agree, nothing is
 * allocated that the cache does not account for, and a failed call left no trace. */
#include "diff/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/half.h"
#include "diff/ops_rig.h"

static uint32_t byte(run *r)
{
    if (r->n == 0) {
        return 0;
    }
    r->n--;
    return *r->p++;
}

uint32_t pick(run *r, uint32_t n)
{
    return byte(r) % n;
}

static uint64_t rng_next(run *r)
{
    uint64_t z = r->rng += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float value(run *r, bool odd)
{
    uint64_t z = rng_next(r);
    if (odd && z % 97 == 0) {
        static const uint32_t bits[] = {0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u,
                                        0x00000001u, 0x7f7fffffu, 0x33800000u, 0xc7800000u};
        return kvs__f32_bits(bits[z / 97 % KVS_COUNT(bits)]);
    }
    return (float)((int64_t)(z >> 40) - (1 << 23)) * 0x1p-22f;
}

int report(const run *r, const char *what, const char *detail)
{
    (void)fprintf(stderr, "op %llu: %s: %s\n", (unsigned long long)r->op, what, detail);
    return 1;
}

static kvs_codec draw_codec(run *r, uint32_t dim)
{
    static const uint8_t bits[] = {0, 0, 0, 2, 3, 4, 4, 5, 6, 8, 8};
    kvs_codec c = KVS_CODEC_DENSE((kvs_dtype)pick(r, 3));
    uint8_t b = bits[pick(r, sizeof bits)];
    uint16_t group = (uint16_t)(32u << pick(r, 3));
    if (b && dim % group == 0) {
        c.bits = b;
        c.group = group;
        static const uint8_t rotate[] = {0, KVS_ROTATED, KVS_ROTATED | KVS_CENTERED};
        c.rotate = rotate[pick(r, 3)];
    }
    return c;
}

/* One of the key: in a latent layer the value must not cut a rotated block. */
static kvs_codec draw_row_codec(run *r, const kvs_layer_spec *s)
{
    kvs_codec k = draw_codec(r, s->k_dim);
    uint32_t block = s->k_dim & (0u - s->k_dim);
    if (s->kind == KVS_LAYER_LATENT && s->v_dim % block != 0) {
        k.rotate = 0;
    }
    return k;
}

static void draw_spec(run *r, kvs_layer_spec *s)
{
    static const uint32_t dims[] = {16, 24, 32, 64, 64, 96, 128};
    kvs_layer_spec init = KVS_LAYER_SPEC_INIT;
    *s = init;
    s->n_kv_heads = 1 + pick(r, 3);
    s->k_dim = dims[pick(r, KVS_COUNT(dims))];
    s->v_dim = dims[pick(r, KVS_COUNT(dims))];
    s->k = draw_codec(r, s->k_dim);
    s->v = draw_codec(r, s->v_dim);
    uint32_t kind = pick(r, 7);
    s->layout = kind >= 2 ? KVS_LAYOUT_RING : KVS_LAYOUT_GROW;
    if (kind >= 4) { /* paged: without a window, with one */
        s->layout = KVS_LAYOUT_PAGED;
        kind = kind == 4 ? 0 : 2;
    }
    uint32_t size = pick(r, 8); /* most are small, some cross chunks and segments */
    s->window = kind == 0 ? 0 : 1 + pick(r, 60) + (size == 0 ? 230 : 0);
    s->sinks = kind == 0 ? 0 : pick(r, 8) * pick(r, 4) + (size == 1 ? 250 : 0);
    s->max_block = kind >= 2 ? pick(r, 40) + (size == 2 ? 270 : 0) : 0;
    s->dense_until = pick(r, 3) == 0 ? pick(r, 40) + (size == 3 ? 240 : 0) : 0;
    s->dense_dtype = (kvs_dtype)pick(r, 3);
    if (pick(r, 5) == 0) {
        s->kind = KVS_LAYER_LATENT;
        s->n_kv_heads = 1;
        s->v_dim = s->k_dim - 8 * pick(r, (s->k_dim - 8) / 8);
        s->k = draw_row_codec(r, s);
        s->v = init.v;
    }
}

uint32_t max_block(const kvs_layer_spec *s)
{
    if (s->layout == KVS_LAYOUT_RING || (s->layout == KVS_LAYOUT_PAGED && s->window)) {
        return s->max_block ? s->max_block : 1;
    }
    return MAX_BLOCK;
}

static int after_op(run *r)
{
    r->op++;
    r->stats->ops++;
    for (uint32_t i = 0; i < r->n_layers; i++) {
        CHECK(kvs_cache_length(r->cache, i) == r->model[i].len, "length");
    }
    if (!r->view[0] && !r->view[1]) { /* a view may be the only holder of a segment */
        kvs_ctx_stats s = KVS_CTX_STATS_INIT;
        CHECK(kvs_ctx_get_stats(r->ctx, &s) == KVS_OK, "stats");
        CHECK(s.live_bytes == r->heap.live, "live bytes");
    }
    kvs_pages_stats p = KVS_PAGES_STATS_INIT;
    CHECK(kvs__pages_check(r->pages), "the pool's invariants");
    CHECK(kvs_pages_get_stats(r->pages, &p) == KVS_OK, "pool stats");
    CHECK(p.max_bytes == 0 || p.peak_bytes <= p.max_bytes, "the pool's limit");
    return 0;
}

/* Was the status right, given that an allocation may have been refused? */
bool failed_as_told(run *r, kvs_status st)
{
    bool f = r->heap.failed;
    r->heap.failed = false;
    bool full = r->limited && st == KVS_E_LIMIT;
    if (f || full) {
        r->stats->refused++;
    }
    return full || (f && st == KVS_E_NOMEM);
}

void fill(run *r, float *x, size_t n, bool odd)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = value(r, odd);
    }
}

static int append_block(run *r, uint32_t layer, uint32_t n, bool odd, uint32_t reserve)
{
    model *m = &r->model[layer];
    if (m->len + n > MODEL_MAX_TOKENS) {
        return 0;
    }
    size_t nk = (size_t)n * m->spec.n_kv_heads * m->spec.k_dim;
    size_t nv = (size_t)n * m->spec.n_kv_heads * m->spec.v_dim;
    fill(r, r->k, nk, odd);
    fill(r, r->v, nv, odd);
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = r->k;
    kv.v = latent(&m->spec) ? NULL : r->v;
    if (reserve < 2) {
        kvs_status st = kvs_cache_reserve(r->cache, reserve ? layer : KVS_ALL_LAYERS, n, NULL);
        CHECK(st == KVS_OK || st == KVS_E_LIMIT || failed_as_told(r, st), "reserve");
    }
    size_t bytes = kvs_cache_bytes(r->cache, layer);
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_cache_append(r->cache, layer, &kv, &err);
    if (n > max_block(&m->spec)) {
        CHECK(st == KVS_E_LIMIT && err.msg[0], "block above the limit");
        r->stats->refused++;
        return 0;
    }
    if (failed_as_told(r, st)) {
        CHECK(kvs_cache_bytes(r->cache, layer) == bytes, "a failed append keeps memory");
        return 0;
    }
    CHECK(st == KVS_OK, err.msg);
    model_append(m, n, r->k, r->v);
    return 0;
}

static int op_append(run *r, uint32_t layer)
{
    uint32_t n = 1 + pick(r, 24);
    if (pick(r, 12) == 0) {
        n += pick(r, 255) + 30;
    }
    bool odd = pick(r, 16) == 0;
    return append_block(r, layer, n, odd, pick(r, 6));
}

/* Many blocks of one size: a ring goes round several times. */
static int op_flood(run *r, uint32_t layer)
{
    uint32_t most = max_block(&r->spec[layer]);
    uint32_t n = 1 + pick(r, most > 255 ? 255 : most);
    uint32_t total = pick(r, 255) + 60;
    for (uint32_t done = 0; done < total; done += n) {
        if (append_block(r, layer, n, false, 2)) {
            return 1;
        }
    }
    return 0;
}

static bool rewind_fits(const model *m, uint64_t n)
{
    int64_t to = m->len - (int64_t)n;
    int64_t dense = (int64_t)m->spec.dense_until;
    bool needs_early = dense > 0 && (to < dense || (to == dense && !m->converted));
    return to == 0 || (to > 0 && !model_may_miss(m, to) && (!needs_early || m->early));
}

static int op_rewind_all(run *r)
{
    uint64_t n = pick(r, 3) == 0 ? pick(r, 255) : pick(r, 12);
    bool must = true;
    bool past = false;
    for (uint32_t i = 0; i < r->n_layers; i++) {
        must = must && rewind_fits(&r->model[i], n);
        past = past || n > (uint64_t)r->model[i].len;
    }
    kvs_status can = kvs_cache_can_rewind(r->cache, KVS_ALL_LAYERS, n);
    kvs_status st = kvs_cache_rewind(r->cache, KVS_ALL_LAYERS, n, NULL);
    CHECK((can == KVS_OK) == (st == KVS_OK), "can_rewind and rewind of all layers agree");
    CHECK(!must || st == KVS_OK, "a rewind of all layers that is exact is refused");
    CHECK(!past || st == KVS_E_RANGE || st == KVS_E_STATE, "rewind of all layers past the start");
    for (uint32_t i = 0; st == KVS_OK && i < r->n_layers; i++) {
        model_rewind(&r->model[i], n);
    }
    return 0;
}

static int op_rewind(run *r, uint32_t layer)
{
    model *m = &r->model[layer];
    uint64_t n = pick(r, 3) == 0 ? pick(r, 255) : pick(r, 12);
    kvs_status can = kvs_cache_can_rewind(r->cache, layer, n);
    kvs_status st = kvs_cache_rewind(r->cache, layer, n, NULL);
    if (n > (uint64_t)m->len) {
        CHECK(st == KVS_E_RANGE && can == KVS_NO, "rewind past the start");
        r->stats->refused++;
        return 0;
    }
    int64_t to = m->len - (int64_t)n;
    int64_t dense = (int64_t)m->spec.dense_until;
    bool needs_early = dense > 0 && (to < dense || (to == dense && !m->converted));
    bool must = rewind_fits(m, n);
    CHECK((can == KVS_OK) == (st == KVS_OK), "can_rewind and rewind agree");
    CHECK(!must || st == KVS_OK, "a rewind that is exact is refused");
    CHECK(to == 0 || !(needs_early && !m->early) || st == KVS_E_STATE,
          "rewind into a dropped dense copy");
    if (st == KVS_OK) {
        model_rewind(m, n);
    } else {
        CHECK(st == KVS_E_STATE, "status of a refused rewind");
        r->stats->refused++;
    }
    return 0;
}

int compare(run *r, const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof *got) != 0) {
            char msg[160];
            (void)snprintf(
                msg, sizeof msg, "element %zu is %.9g (%08x), the model says %.9g (%08x)", i,
                (double)got[i], kvs__bits_f32(got[i]), (double)want[i], kvs__bits_f32(want[i]));
            return report(r, what, msg);
        }
        r->stats->digest = (r->stats->digest ^ kvs__bits_f32(got[i])) * 0x100000001b3u;
    }
    r->stats->reads++;
    return 0;
}

void draw_read(run *r, const model *m, kvs_attend *d, float *sinks)
{
    kvs_attend init = KVS_ATTEND_INIT;
    *d = init;
    d->n_q_heads = m->spec.n_kv_heads * (1 + pick(r, 4));
    d->n_queries = 1 + (pick(r, 3) == 0 ? pick(r, 20) : 0);
    d->q = r->q;
    d->out = r->got;
    d->scale = 0.125f;
    d->softcap = pick(r, 5) == 0 ? 3.0f : 0.0f;
    if (pick(r, 5) == 0) {
        for (uint32_t h = 0; h < d->n_q_heads; h++) {
            sinks[h] = value(r, false) * 4.0f;
        }
        d->sink_logits = sinks;
    }
    fill(r, r->q, (size_t)d->n_queries * d->n_q_heads * m->spec.k_dim, pick(r, 30) == 0);
}

/* Must, may, or must not this causal read be refused? */
static int judge_read(run *r, const model *m, const kvs_attend *d, kvs_status st, bool *done)
{
    int64_t dense = (int64_t)m->spec.dense_until;
    *done = true;
    if (m->len == 0) {
        CHECK(st == KVS_E_STATE, "read of an empty layer");
    } else if (d->q_pos < 0 || d->q_pos + d->n_queries > m->len) {
        CHECK(st == KVS_E_RANGE, "queries out of range");
    } else if (dense > 0 && d->mode == KVS_READ_BIDIRECTIONAL && d->q_pos < dense &&
               d->q_pos + d->n_queries > dense) {
        CHECK(st == KVS_E_UNSUPPORTED, "bidirectional read across the switch");
    } else if (dense > 0 && d->q_pos < dense && !m->early) {
        CHECK(st == KVS_E_STATE || st == KVS_E_RANGE, "query below a dropped dense copy");
    } else if (model_may_miss(m, d->q_pos) && st == KVS_E_RANGE) {
        r->stats->refused++;
    } else {
        CHECK(st == KVS_OK, kvs_status_name(st));
        *done = false;
    }
    return 0;
}

static int op_read(run *r, uint32_t layer)
{
    model *m = &r->model[layer];
    kvs_attend d;
    float sinks[64];
    uint8_t flags[64];
    draw_read(r, m, &d, sinks);
    if (pick(r, 6) == 0) {
        d.mode = KVS_READ_BIDIRECTIONAL;
        for (uint32_t i = 0; i < d.n_queries; i++) {
            flags[i] = (uint8_t)pick(r, 2);
        }
        d.flags = flags;
    }
    d.q_pos = pick(r, 4) == 0 ? (int64_t)pick(r, 255) : -1;
    kvs_status st = kvs_cache_attend(r->cache, layer, &d, NULL);
    d.q_pos = d.q_pos < 0 ? m->len - (int64_t)d.n_queries : d.q_pos;
    bool done = false;
    if (judge_read(r, m, &d, st, &done) || done) {
        return done ? 0 : 1;
    }
    model_attend(m, &d, r->q, NULL, NULL, r->want);
    return compare(r, r->got, r->want, (size_t)d.n_queries * d.n_q_heads * m->spec.v_dim, "read");
}

static int op_block(run *r, uint32_t layer)
{
    model *m = &r->model[layer];
    kvs_attend d;
    float sinks[64];
    draw_read(r, m, &d, sinks);
    fill(r, r->k, (size_t)d.n_queries * m->spec.n_kv_heads * m->spec.k_dim, false);
    fill(r, r->v, (size_t)d.n_queries * m->spec.n_kv_heads * m->spec.v_dim, false);
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = d.n_queries;
    kv.k = r->k;
    kv.v = latent(&m->spec) ? NULL : r->v;
    d.mode = KVS_READ_BLOCK;
    d.block = &kv;
    kvs_status st = kvs_cache_attend(r->cache, layer, &d, NULL);
    if (m->len == 0) {
        CHECK(st == KVS_E_STATE, "block read of an empty layer");
        return 0;
    }
    if (failed_as_told(r, st)) {
        return 0;
    }
    if (st == KVS_E_RANGE && model_may_miss(m, m->len)) {
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    d.q_pos = m->len;
    model_attend(m, &d, r->q, r->k, r->v, r->want);
    return compare(r, r->got, r->want, (size_t)d.n_queries * d.n_q_heads * m->spec.v_dim,
                   "block read");
}

static void drop_view(run *r, uint32_t i)
{
    if (r->view[i]) {
        kvs_view_free(r->view[i]);
        model_free(&r->at_view[i]);
        r->view[i] = NULL;
    }
}

static int op_view_new(run *r, uint32_t layer, uint32_t i)
{
    kvs_status st = kvs_view_new(r->cache, layer, &r->view[i], NULL);
    if (r->model[layer].len == 0) {
        CHECK(st == KVS_E_STATE && !r->view[i], "view of an empty layer");
        return 0;
    }
    if (failed_as_told(r, st)) {
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    model_copy(&r->at_view[i], &r->model[layer]);
    return 0;
}

static int op_view(run *r, uint32_t layer)
{
    uint32_t i = pick(r, MAX_VIEWS);
    if (!r->view[i]) {
        return op_view_new(r, layer, i);
    }
    model *m = &r->at_view[i];
    kvs_view_info info = KVS_VIEW_INFO_INIT;
    CHECK(kvs_view_get_info(r->view[i], &info) == KVS_OK && info.offset == m->len, "view offset");
    kvs_attend d;
    float sinks[64];
    draw_read(r, m, &d, sinks);
    kvs_status st = kvs_view_attend(r->view[i], &d, NULL);
    d.q_pos = m->len - (int64_t)d.n_queries;
    bool done = false;
    if (judge_read(r, m, &d, st, &done) || done) {
        return done ? 0 : 1;
    }
    model_attend(m, &d, r->q, NULL, NULL, r->want);
    if (compare(r, r->got, r->want, (size_t)d.n_queries * d.n_q_heads * m->spec.v_dim, "view")) {
        return 1;
    }
    if (pick(r, 3) == 0) {
        drop_view(r, i);
    }
    return 0;
}

static void drop_fork(run *r)
{
    if (r->fork) {
        kvs_cache_free(r->fork);
        model_free(&r->at_fork);
        r->fork = NULL;
    }
}

static int fork_new(run *r, uint32_t layer)
{
    model *m = &r->model[layer];
    uint64_t back = pick(r, 2) ? pick(r, 40) : 0;
    bool dense = m->spec.dense_until > 0 && m->len - (int64_t)back <= m->spec.dense_until;
    if (m->spec.layout != KVS_LAYOUT_PAGED || m->len <= (int64_t)back ||
        kvs_cache_can_rewind(r->cache, layer, back) != KVS_OK || (dense && m->converted)) {
        return 0;
    }
    r->fork = ops_fork(r->ctx, r->pages, r->cache, layer, m->len - (int64_t)back);
    if (failed_as_told(r, r->fork ? KVS_OK : KVS_E_NOMEM)) {
        return 0;
    }
    CHECK(r->fork, "fork");
    model_copy(&r->at_fork, m);
    model_rewind(&r->at_fork, back);
    return 0;
}

/* Reads a fork, goes on with it, and reads it again: the parent's writes must not show. */
static int op_fork(run *r, uint32_t layer)
{
    if (!r->fork) {
        return fork_new(r, layer);
    }
    model *m = &r->at_fork;
    for (int turn = 0; turn < 2; turn++) {
        kvs_attend d;
        float sinks[64];
        draw_read(r, m, &d, sinks);
        d.n_queries = 1;
        CHECK(kvs_cache_length(r->fork, 0) == m->len, "length of the fork");
        kvs_status st = kvs_cache_attend(r->fork, 0, &d, NULL);
        d.q_pos = m->len - 1;
        bool done = false;
        if (judge_read(r, m, &d, st, &done) || done) {
            return done ? 0 : 1;
        }
        model_attend(m, &d, r->q, NULL, NULL, r->want);
        if (compare(r, r->got, r->want, (size_t)d.n_q_heads * m->spec.v_dim, "fork")) {
            return 1;
        }
        uint32_t most = max_block(&m->spec);
        uint32_t n = 1 + pick(r, most > 30 ? 30 : most);
        if (turn > 0 || m->len + n > MODEL_MAX_TOKENS) {
            break;
        }
        fill(r, r->k, (size_t)n * m->spec.n_kv_heads * m->spec.k_dim, false);
        fill(r, r->v, (size_t)n * m->spec.n_kv_heads * m->spec.v_dim, false);
        kvs_kv kv = KVS_KV_INIT;
        kv.n_tokens = n;
        kv.k = r->k;
        kv.v = r->v;
        st = kvs_cache_append(r->fork, 0, &kv, NULL);
        if (failed_as_told(r, st)) {
            continue;
        }
        CHECK(st == KVS_OK, "append to a fork");
        model_append(m, n, r->k, r->v);
    }
    if (pick(r, 3) == 0) {
        drop_fork(r);
    }
    return 0;
}

static int op_convert(run *r, uint32_t layer)
{
    model *m = &r->model[layer]; /* keeps what a ring dropped: the live tokens are the same */
    kvs_codec k = draw_row_codec(r, &m->spec);
    kvs_codec v = latent(&m->spec) ? m->spec.v : draw_codec(r, m->spec.v_dim);
    kvs_status st = kvs_cache_convert(r->cache, layer, &k, latent(&m->spec) ? NULL : &v, NULL);
    if (failed_as_told(r, st)) {
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    kvs_codec ok = m->spec.k;
    kvs_codec ov = m->spec.v;
    if (latent(&m->spec)) { /* there, and of values, centres have no effect */
        ok.rotate &= KVS_ROTATED;
        k.rotate &= KVS_ROTATED;
    }
    ov.rotate &= KVS_ROTATED;
    v.rotate &= KVS_ROTATED;
    if (memcmp(&ok, &k, sizeof k) != 0 || memcmp(&ov, &v, sizeof v) != 0) {
        model_convert(m, &k, &v);
    }
    return 0;
}

static int op_clear(run *r)
{
    CHECK(kvs_cache_clear(r->cache, NULL) == KVS_OK, "clear");
    for (uint32_t i = 0; i < r->n_layers; i++) {
        model_clear(&r->model[i]);
    }
    return 0;
}

static int one_op(run *r)
{
    uint32_t kind = pick(r, 43);
    uint32_t layer = pick(r, r->n_layers);
    if (kind < 12) {
        return op_append(r, layer);
    }
    if (kind == 32) {
        return op_flood(r, layer);
    }
    if (kind == 33) {
        return op_rewind_all(r);
    }
    if (kind >= 40) {
        return op_fork(r, layer);
    }
    if (kind > 33) {
        return kind < 36 ? op_import(r, layer) : op_step(r, layer);
    }
    if (kind < 16) {
        return op_rewind(r, layer);
    }
    if (kind < 23) {
        return op_read(r, layer);
    }
    if (kind < 25) {
        return op_block(r, layer);
    }
    if (kind < 28) {
        return op_view(r, layer);
    }
    if (kind == 28) {
        return op_convert(r, layer);
    }
    if (kind < 31) {
        return op_copy(r, layer);
    }
    return pick(r, 4) == 0 ? op_clear(r) : 0;
}

static bool start(run *r, uint32_t tiers_off, uint32_t n_threads)
{
    if (!heap_contexts(&r->heap, tiers_off, n_threads, &r->ctx, &r->plain)) {
        return false;
    }
    r->n_layers = 1 + pick(r, MAX_LAYERS);
    for (uint32_t i = 0; i < r->n_layers; i++) {
        draw_spec(r, &r->spec[i]);
    }
    kvs_cache_opts c = KVS_CACHE_OPTS_INIT;
    c.n_layers = r->n_layers;
    c.layers = r->spec;
    c.reserve_tokens = pick(r, 3) == 0 ? pick(r, 200) : 0;
    uint32_t tight = pick(r, 6) == 0 ? 1 + pick(r, 255) : 0;
    uint32_t size = pick(r, 8);
    r->pages = ops_pool(r->ctx, size, pick(r, 64), tight);
    r->limited = tight > 0;
    c.pages = r->pages;
    if (!r->pages) {
        return false;
    }
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs_cache_new(r->ctx, &c, &r->cache, &err) != KVS_OK) {
        (void)fprintf(stderr, "cache: %s\n", err.msg);
        return false;
    }
    for (uint32_t i = 0; i < r->n_layers; i++) {
        model_init(&r->model[i], r->plain, &r->spec[i]);
    }
    return true;
}

static int finish(run *r, int bad)
{
    for (uint32_t i = 0; i < MAX_VIEWS; i++) {
        drop_view(r, i);
    }
    drop_fork(r);
    kvs_cache_free(r->cache);
    kvs_pages_free(r->pages);
    for (uint32_t i = 0; i < r->n_layers; i++) {
        if (r->model[i].in[0]) {
            model_free(&r->model[i]);
        }
    }
    kvs_ctx_free(r->ctx);
    kvs_ctx_free(r->plain);
    free(r->k);
    free(r->v);
    free(r->q);
    free(r->got);
    free(r->want);
    free(r->center);
    if (!bad && r->heap.live != 0) {
        return report(r, "leak", "bytes are live after everything was freed");
    }
    return bad;
}

int ops_run(const uint8_t *program, size_t n, uint32_t tiers_off, uint32_t n_threads,
            uint64_t fail_at, ops_stats *stats)
{
    run r;
    memset(&r, 0, sizeof r);
    r.p = program;
    r.n = n;
    r.stats = stats;
    r.rng = n;
    size_t kv = (size_t)(MAX_BLOCK + 64) * 3 * 128;
    r.k = calloc(kv, sizeof(float));
    r.v = calloc(kv, sizeof(float));
    r.q = calloc((size_t)32 * 16 * 128, sizeof(float));
    r.got = calloc((size_t)32 * 16 * 128, sizeof(float));
    r.want = calloc((size_t)32 * 16 * 128, sizeof(float));
    r.center = calloc((size_t)8 * 3 * 128, sizeof(float));
    if (!r.k || !r.v || !r.q || !r.got || !r.want || !r.center ||
        !start(&r, tiers_off, n_threads)) {
        return finish(&r, 1);
    }
    r.heap.fail_at = fail_at;
    stats->programs++;
    int bad = 0;
    while (!bad && r.n > 0) {
        bad = one_op(&r) || after_op(&r);
    }
    return finish(&r, bad);
}
