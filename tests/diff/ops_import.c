/* SPDX-License-Identifier: MIT */
/* ops_import.c: the ops of ops.c whose tokens come encoded: imports, steps of a tensor engine, and a
 * copy through export and import. */
#include <string.h>

#include "base/base.h"
#include "base/half.h"
#include "diff/ops_rig.h"

/* Centres for an import at `at`: that of a group with tokens, others drawn. */
static void draw_centers(run *r, const model *m, int64_t at, uint32_t n, planes_buf *out)
{
    const kvs_layer_spec *s = &m->spec;
    size_t f = (size_t)s->n_kv_heads * s->k_dim;
    int64_t first = at - at % (int64_t)KVS_CENTER_GROUP;
    bool begun = first < at && (at == m->len || (first < m->len && first < (int64_t)s->sinks));
    uint64_t groups = kvs_center_groups(at, n);
    for (uint64_t g = 0; g < groups; g++) {
        for (size_t i = 0; i < f; i++) {
            size_t to = (i / s->k_dim * groups + g) * s->k_dim + i % s->k_dim;
            float *x = &r->center[g * f + i];
            *x = (float)(int32_t)pick(r, 16) * 0.25f - 2.0f;
            if (g == 0 && begun) {
                *x = m->center[(size_t)first / KVS_CENTER_GROUP * f + i];
            }
            if (s->k.dtype == KVS_F32) {
                ((float *)out->p.k_center)[to] = *x;
            } else {
                ((uint16_t *)out->p.k_center)[to] =
                    s->k.dtype == KVS_F16 ? kvs__f16_from_f32(*x) : kvs__bf16_from_f32(*x);
            }
        }
    }
}

/* Draws n rows into r->k and r->v and encodes them as the layer would: the planes of an import. */
static kvs_status draw_planes(run *r, const model *m, int64_t at, bool dense, uint32_t n,
                              planes_buf *out)
{
    const kvs_layer_spec *spec = &m->spec;
    kvs_layer_spec s = KVS_LAYER_SPEC_INIT;
    s.kind = spec->kind;
    s.n_kv_heads = spec->n_kv_heads;
    s.k_dim = spec->k_dim;
    s.v_dim = spec->v_dim;
    s.k = dense ? (kvs_codec){0, 0, 0, spec->dense_dtype} : spec->k;
    s.v = dense ? (kvs_codec){0, 0, 0, spec->dense_dtype} : spec->v;
    s.k.rotate &= KVS_ROTATED; /* the rows are what is encoded beside the centres */
    fill(r, r->k, (size_t)n * s.n_kv_heads * s.k_dim, false);
    fill(r, r->v, (size_t)n * s.n_kv_heads * s.v_dim, false);
    planes_alloc(out, spec, dense, n);
    planes_center(out, spec, dense, at, n);
    if (out->p.k_center) {
        draw_centers(r, m, at, n, out);
    }
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = 1;
    o.layers = &s;
    kvs_cache *c = NULL;
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = r->k;
    kv.v = latent(&s) ? NULL : r->v;
    kvs_status st = kvs_cache_new(r->plain, &o, &c, NULL);
    st = st == KVS_OK ? kvs_cache_append(c, 0, &kv, NULL) : st;
    kvs_planes codes = out->p;
    codes.k_center = NULL;
    st = st == KVS_OK ? kvs_cache_export(c, 0, 0, n, &codes, NULL) : st;
    kvs_cache_free(c);
    return st;
}

/* Encoded rows at the end, or (ring) past a gap. */
int op_import(run *r, uint32_t layer)
{
    model *m = &r->model[layer];
    int64_t until = (int64_t)m->spec.dense_until;
    bool ring = max_block(&m->spec) != MAX_BLOCK;
    uint32_t most = max_block(&m->spec);
    uint32_t n = 1 + pick(r, most > 40 ? 40 : most);
    int64_t gap = ring && m->len >= (int64_t)m->spec.sinks ? (int64_t)pick(r, 80) : 0;
    gap = pick(r, 2) ? gap : 0;
    bool dense = until > 0 && m->len + gap + n <= until;
    if ((until > 0 && !dense && !m->converted) || m->len + gap + n > MODEL_MAX_TOKENS) {
        return 0;
    }
    planes_buf b;
    CHECK(draw_planes(r, m, m->len + gap, dense, n, &b) == KVS_OK, "encoded rows");
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_cache_import(r->cache, layer, m->len + gap, n, &b.p, &err);
    planes_free(&b);
    if (failed_as_told(r, st)) {
        return 0;
    }
    CHECK(st == KVS_OK, err.msg);
    model_skip(m, (uint32_t)gap);
    model_import(m, n, r->k, r->v, dense ? NULL : r->center);
    return 0;
}

int op_step(run *r, uint32_t layer)
{
    model *m = &r->model[layer];
    kvs_step step = KVS_STEP_INIT;
    kvs_status st = kvs_step_plan(r->cache, layer, &step, NULL);
    bool crosses = m->spec.dense_until > 0 && m->len == (int64_t)m->spec.dense_until;
    if (m->len == 0 || (crosses && !m->converted)) {
        CHECK(st == KVS_E_STATE, "a step of an empty or converting layer");
        return 0;
    }
    if (failed_as_told(r, st) || (st == KVS_E_RANGE && model_may_miss(m, m->len))) {
        return 0;
    }
    CHECK(st == KVS_OK && step.position == m->len, kvs_status_name(st));
    if (m->len + 1 > MODEL_MAX_TOKENS || pick(r, 4) == 0) {
        return 0; /* a plan that is not committed */
    }
    kvs_span spans[16];
    uint32_t n_spans = 0;
    uint64_t sum = 0;
    CHECK(kvs_step_inputs(r->cache, layer, &step, spans, 16, &n_spans, NULL) == KVS_OK, "inputs");
    for (uint32_t i = 0; i < n_spans && i < 16; i++) {
        sum += spans[i].n_tokens;
    }
    CHECK(n_spans > 16 || sum == step.active, "the spans hold the active tokens");
    planes_buf b;
    bool dense = m->spec.dense_until > 0 && !m->converted;
    CHECK(draw_planes(r, m, m->len, dense, 1, &b) == KVS_OK, "encoded row");
    r->heap.failed = false;
    kvs_err err = {KVS_OK, 0, "", ""};
    st = kvs_step_commit(r->cache, layer, &step, &b.p, &err);
    planes_free(&b);
    CHECK(st == KVS_OK, err.msg);
    model_import(m, 1, r->k, r->v, dense ? NULL : r->center);
    return 0;
}

/* Export of the live tokens, import into a second cache, and the same bytes out of that one. */
int op_copy(run *r, uint32_t layer)
{
    model *m = &r->model[layer];
    int64_t oldest = kvs_cache_oldest(r->cache, layer);
    uint64_t n = (uint64_t)(m->len - oldest);
    bool missing = model_may_miss(m, m->len - 1); /* an import has left a gap */
    if (n == 0 || (m->spec.dense_until > 0 && m->converted) || m->spec.sinks > 0 || missing) {
        return 0;
    }
    bool dense = m->spec.dense_until > 0;
    planes_buf a;
    planes_buf b;
    planes_alloc(&a, &m->spec, dense, n);
    planes_alloc(&b, &m->spec, dense, n);
    planes_center(&a, &m->spec, dense, oldest, n);
    planes_center(&b, &m->spec, dense, oldest, n);
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = 1;
    o.layers = &m->spec;
    o.block_tokens = kvs__pages_block(r->pages);
    kvs_cache *c = NULL;
    kvs_status st = kvs_cache_export(r->cache, layer, oldest, n, &a.p, NULL);
    CHECK(st == KVS_OK, kvs_status_name(st));
    CHECK(kvs_cache_new(r->plain, &o, &c, NULL) == KVS_OK, "second cache");
    kvs_err err = {KVS_OK, 0, "", ""};
    st = kvs_cache_import(c, 0, oldest, n, &a.p, &err);
    CHECK(st == KVS_OK, err.msg);
    CHECK(kvs_cache_export(c, 0, oldest, n, &b.p, NULL) == KVS_OK, "export again");
    for (int i = 0; i < 6; i++) {
        const void *x = i < 3 ? a.p.k[i] : a.p.v[i - 3];
        const void *y = i < 3 ? b.p.k[i] : b.p.v[i - 3];
        CHECK(!x || memcmp(x, y, a.bytes[i]) == 0, "planes after import");
    }
    CHECK(!a.p.k_center || memcmp(a.p.k_center, b.p.k_center, a.center_bytes) == 0,
          "centres after import");
    kvs_attend d;
    float sinks[64];
    draw_read(r, m, &d, sinks);
    d.n_queries = 1;
    st = kvs_cache_attend(c, 0, &d, NULL);
    CHECK(st == KVS_OK, "read of the imported layer");
    d.q_pos = m->len - 1;
    model_attend(m, &d, r->q, NULL, NULL, r->want);
    int bad = compare(r, r->got, r->want, (size_t)d.n_q_heads * m->spec.v_dim, "imported");
    kvs_cache_free(c);
    planes_free(&a);
    planes_free(&b);
    return bad;
}
