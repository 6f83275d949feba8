/* SPDX-License-Identifier: MIT */
/* hf_rope.c: rope_theta, rope_scaling and their newer form rope_parameters as the engine's keys.
 *
 * Kinds of scaling that are a divisor for each frequency (llama3) become those divisors, which is
 * what GGUF files carry as rope_freqs.weight; the others become keys, and net.c decides what it
 * computes. */
#include "engine/hf_rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PI 3.14159265358979323846

typedef struct rope {
    kvs__hf *hf;
    kvs__jval config;
    kvs__jval scaling; /* object or none */
    kvs_err *err;
    uint32_t n_rot;
    double theta;
} rope;

static kvs__jval get(kvs__jval object, const char *name)
{
    kvs__jval v = kvs__json_get(object, name);
    return kvs__json_kind(v) == KVS__JSON_NULL ? (kvs__jval){NULL, 0} : v;
}

/* A positive number; *out keeps its value where it is absent. */
static kvs_status number(const rope *r, kvs__jval object, const char *name, double *out)
{
    kvs__jval v = get(object, name);
    double x = 0.0;
    if (!v.doc) {
        return KVS_OK;
    }
    if (!kvs__json_double(v, &x) || !(x > 0.0) || !isfinite((float)x)) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                         "config.json: %s is %s %s, not a positive number", name,
                         kvs__json_kind_name(v), kvs__gguf_quote(kvs__json_raw(v)).text);
    }
    *out = x;
    return KVS_OK;
}

static kvs_status put(const rope *r, const char *suffix, double v)
{
    char key[96];
    (void)snprintf(key, sizeof key, "%s.%s", r->hf->family->arch, suffix);
    return kvs__meta_f32(r->hf, key, (float)v, r->err);
}

static kvs_status put_type(const rope *r, const char *type)
{
    char key[96];
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", r->hf->family->arch);
    return kvs__meta_str(r->hf, key, type, r->err);
}

/* Numbers of the scaling as they are, under names of the engine. */
static kvs_status put_numbers(const rope *r)
{
    static const struct {
        const char *name;
        const char *suffix;
    } keys[] = {
        {"factor", "rope.scaling.factor"},
        {"beta_fast", "rope.scaling.yarn_beta_fast"},
        {"beta_slow", "rope.scaling.yarn_beta_slow"},
        {"attention_factor", "rope.scaling.attention_factor"},
        {"partial_rotary_factor", "rope.scaling.partial_rotary_factor"},
        {"mscale", "rope.scaling.mscale"},
        {"mscale_all_dim", "rope.scaling.mscale_all_dim"},
    };
    kvs_status st = KVS_OK;
    for (size_t i = 0; st == KVS_OK && i < KVS_COUNT(keys); i++) {
        double x = 0.0;
        st = number(r, r->scaling, keys[i].name, &x);
        if (st == KVS_OK && x > 0.0) {
            st = put(r, keys[i].suffix, x);
        }
        if (st == KVS_OK && x > 0.0 && strcmp(keys[i].name, "mscale_all_dim") == 0) {
            st = put(r, "rope.scaling.yarn_log_multiplier", 0.1 * x);
        }
    }
    double original = 0.0;
    if (st == KVS_OK) {
        st = number(r, r->scaling, "original_max_position_embeddings", &original);
    }
    if (st == KVS_OK && original == 0.0) {
        st = number(r, r->config, "original_max_position_embeddings", &original);
    }
    if (st == KVS_OK && original >= 1.0 && original < 4294967296.0) {
        char key[96];
        (void)snprintf(key, sizeof key, "%s.rope.scaling.original_context_length",
                       r->hf->family->arch);
        st = kvs__meta_u32(r->hf, key, (uint32_t)original, r->err);
    }
    return st;
}

/* Low frequencies are divided by `factor`, high ones stay, those between change smoothly. */
static kvs_status llama3_factors(rope *r)
{
    double factor = 0.0;
    double low = 1.0;
    double high = 4.0;
    double original = 8192.0;
    kvs_status st = number(r, r->scaling, "factor", &factor);
    if (st == KVS_OK) {
        st = number(r, r->scaling, "low_freq_factor", &low);
    }
    if (st == KVS_OK) {
        st = number(r, r->scaling, "high_freq_factor", &high);
    }
    if (st == KVS_OK) {
        st = number(r, r->scaling, "original_max_position_embeddings", &original);
    }
    if (st != KVS_OK) {
        return st;
    }
    if (factor == 0.0 || !(high > low)) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                         "config.json: rope_scaling has factor %g, low_freq_factor %g, "
                         "high_freq_factor %g",
                         factor, low, high);
    }
    size_t n = r->n_rot / 2;
    r->hf->rope_factors = kvs__calloc(r->hf->ctx, n, sizeof(float));
    if (!r->hf->rope_factors) {
        return kvs__nomem(r->err, "engine", n * sizeof(float));
    }
    r->hf->n_rope_factors = n;
    for (size_t i = 0; i < n; i++) {
        double wave = 2.0 * PI * pow(r->theta, 2.0 * (double)i / (double)r->n_rot);
        double f = factor;
        if (wave < original / high) {
            f = 1.0;
        } else if (wave <= original / low) {
            double smooth = (original / wave - low) / (high - low);
            f = 1.0 / ((1.0 - smooth) / factor + smooth);
        }
        r->hf->rope_factors[i] = (float)f;
    }
    return KVS_OK;
}

/* A divisor for each pair. */
static kvs_status read_list(const rope *r, const char *name, float *out, kvs_err *err)
{
    kvs__jval list = get(r->scaling, name);
    size_t n = r->n_rot / 2;
    size_t have = kvs__json_kind(list) == KVS__JSON_ARRAY ? kvs__json_count(list) : 0;
    if (have != n) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "config.json: %s has %zu numbers for %zu rotary pairs", name, have, n);
    }
    kvs__jval v = {NULL, 0};
    double x = 0.0;
    for (size_t i = 0; kvs__json_next(list, &v); i++) {
        if (!kvs__json_double(v, &x) || !((float)x > 0.0f) || !isfinite((float)x)) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "config.json: %s holds %s %s, not a positive number", name,
                             kvs__json_kind_name(v), kvs__gguf_quote(kvs__json_raw(v)).text);
        }
        out[i] = (float)x;
    }
    return KVS_OK;
}

/* Divisors for long contexts, then for short ones. */
static kvs_status long_factors(rope *r)
{
    size_t n = r->n_rot; /* two lists of half as many */
    r->hf->rope_factors = kvs__calloc(r->hf->ctx, n, sizeof(float));
    if (!r->hf->rope_factors) {
        return kvs__nomem(r->err, "engine", n * sizeof(float));
    }
    r->hf->n_rope_factors = n;
    r->hf->rope_is_long = true;
    kvs_status st = read_list(r, "long_factor", r->hf->rope_factors, r->err);
    return st == KVS_OK ? read_list(r, "short_factor", r->hf->rope_factors + n / 2, r->err) : st;
}

static kvs_status write_scaling(rope *r)
{
    kvs__jval type = get(r->scaling, "rope_type");
    type = type.doc ? type : get(r->scaling, "type");
    if (!r->scaling.doc || !type.doc || kvs__json_is(type, "default")) {
        return KVS_OK;
    }
    if (kvs__json_is(type, "llama3")) {
        return llama3_factors(r);
    }
    static const char *const known[] = {"linear",       "dynamic",  "yarn",
                                        "proportional", "longrope", "su"};
    for (size_t i = 0; i < KVS_COUNT(known); i++) {
        if (!kvs__json_is(type, known[i])) {
            continue;
        }
        kvs_status st = put_type(r, known[i]);
        if (st == KVS_OK) {
            st = put_numbers(r);
        }
        bool is_long = kvs__json_is(type, "longrope") || kvs__json_is(type, "su");
        return st == KVS_OK && is_long ? long_factors(r) : st;
    }
    return kvs__fail(r->err, KVS_E_UNSUPPORTED, "engine",
                     "config.json: rope_scaling of type \"%s\"; default, linear, dynamic, yarn, "
                     "llama3, longrope and proportional are read",
                     kvs__gguf_quote(kvs__json_raw(type)).text);
}

/* Elements of a head that turn. */
static kvs_status read_n_rot(rope *r)
{
    int64_t heads = 0;
    int64_t width = 0;
    int64_t dim = 0;
    double part = 1.0;
    (void)kvs__json_int(get(r->config, "num_attention_heads"), &heads);
    (void)kvs__json_int(get(r->config, "hidden_size"), &width);
    if (!kvs__json_int(get(r->config, "head_dim"), &dim)) {
        dim = heads > 0 ? width / heads : 0;
    }
    kvs_status st = number(r, r->config, "partial_rotary_factor", &part);
    if (st == KVS_OK && r->hf->family->flags & KVS__HF_DELTA) { /* beside the base in newer files */
        part = get(r->config, "partial_rotary_factor").doc ? part : 0.25;
        st = number(r, r->scaling, "partial_rotary_factor", &part);
    }
    if (st == KVS_OK && part != 1.0) {
        char key[96];
        (void)snprintf(key, sizeof key, "%s.rope.dimension_count", r->hf->family->arch);
        dim = part <= 1.0 && dim > 0 && dim < 65536 ? (int64_t)((double)dim * part) : 0;
        st = kvs__meta_u32(r->hf, key, (uint32_t)dim, r->err);
    }
    int64_t own = 0;
    if (kvs__json_int(get(r->config, "qk_rope_head_dim"), &own)) {
        dim = own;
    }
    if (st == KVS_OK && (dim < 0 || dim > 65536)) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine", "config.json: head_dim is %lld",
                         (long long)dim);
    }
    r->n_rot = (uint32_t)dim;
    return st;
}

/* Newer files keep base and scaling together, for each kind of layer where there are two. */
static kvs_status read_bases(rope *r, double *local)
{
    kvs__jval p = get(r->config, "rope_parameters");
    kvs__jval full = get(p, "full_attention");
    kvs__jval sliding = get(p, "sliding_attention");
    kvs__jval global = full.doc ? full : p;
    r->scaling = global.doc ? global : get(r->config, "rope_scaling");
    kvs_status st = number(r, r->config, "rope_theta", &r->theta);
    if (st == KVS_OK) {
        st = number(r, global, "rope_theta", &r->theta);
    }
    if (st == KVS_OK) {
        st = number(r, r->config, "rope_local_base_freq", local);
    }
    return st == KVS_OK ? number(r, sliding, "rope_theta", local) : st;
}

kvs_status kvs__hf_write_rope(kvs__hf *hf, kvs__jval config, kvs_err *err)
{
    bool gemma3 = strcmp(hf->family->arch, "gemma3") == 0 || hf->family->flags & KVS__HF_GEMMA4;
    rope r = {.hf = hf, .config = config, .err = err, .theta = gemma3 ? 1e6 : 1e4};
    double local = 1e4;
    kvs_status st = read_bases(&r, &local);
    if (st == KVS_OK) {
        st = read_n_rot(&r);
    }
    if (st == KVS_OK) {
        st = put(&r, "rope.freq_base", r.theta);
    }
    if (st == KVS_OK && gemma3) {
        st = put(&r, "rope.freq_base_swa", local);
    }
    return st == KVS_OK ? write_scaling(&r) : st;
}
