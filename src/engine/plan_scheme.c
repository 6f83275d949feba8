/* SPDX-License-Identifier: MIT */
/* plan_scheme.c: a plan's names for machines: the canonical signature and its digest, and the strings
 * that mlx-bun and mlx-optiq use for the plans that they can express (plan.h).
 *
 * The signature frames each layer by its length, so it has one reading only, and says what decides
 * the stored bytes and which tokens are stored and seen; how much may be appended at once
 * (max_block) and how long the context may become are limits, not state, and are left out. */
#include <stdio.h>
#include <string.h>

#include "base/sha256.h"
#include "engine/plan_parse.h"
#include "kvstate/plan.h"
#include "kvstate/recurrent.h"

/* ---- signature */

/* Text of a layer, framed: "52:attention heads=2 ...,". */
typedef struct frame {
    char text[320];
    size_t n;
} frame;

static void layer_frame(const kvs_plan *p, uint32_t i, frame *f)
{
    static const char *const kinds[] = {"attention", "latent", "borrow", "recurrent"};
    static const char *const layouts[] = {"grow", "ring", "paged"};
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    const kvs_layer_spec *s = kvs_plan_layer(p, i);
    char body[256];
    char k[48];
    char v[48];
    kvs__plan_text t = {body, sizeof body, 0};
    (void)kvs_codec_name(&s->k, k, sizeof k);
    (void)kvs_codec_name(&s->v, v, sizeof v);
    kvs__plan_put(&t, "%s", kinds[s->kind]);
    if (s->kind == KVS_LAYER_BORROW) {
        kvs__plan_put(&t, " donor=%u", s->donor);
    } else if (s->kind == KVS_LAYER_RECURRENT && s->recurrent) {
        const kvs_recurrent_spec *r = s->recurrent;
        kvs__plan_put(&t, " rule=%d heads=%u/%u dims=%u/%u conv=%ux%u/%s", (int)r->rule, r->n_heads,
                      r->n_groups, r->head_dim, r->state_dim, r->conv_dim, r->conv_taps,
                      dtypes[r->conv_dtype]);
    } else {
        kvs__plan_put(&t, " heads=%u dims=%u/%u k=%s", s->n_kv_heads, s->k_dim, s->v_dim, k);
        if (s->kind == KVS_LAYER_ATTENTION) {
            kvs__plan_put(&t, " v=%s", v);
        }
        kvs__plan_put(&t, " %s", layouts[s->layout]);
        if (s->layout == KVS_LAYOUT_PAGED) {
            kvs__plan_put(&t, "=%u", kvs_plan_kv_block(p));
        }
        kvs__plan_put(&t, " window=%u sinks=%u start=%u", s->window, s->sinks, s->dense_until);
        if (s->dense_until > 0) {
            kvs__plan_put(&t, "/%s", dtypes[s->dense_dtype]);
        }
    }
    KVS_ASSERT(t.used < sizeof body);
    int n = snprintf(f->text, sizeof f->text, "%zu:%s,", t.used, body);
    f->n = n > 0 ? (size_t)n : 0;
}

static size_t head_text(const kvs_plan *p, char *dst, size_t n)
{
    int len = snprintf(dst, n, "kvs-plan-1:%u,", kvs_plan_n_layers(p));
    return len > 0 ? (size_t)len : 0;
}

size_t kvs_plan_signature(const kvs_plan *p, char *dst, size_t n)
{
    frame f;
    kvs__plan_text t = {dst, n, 0};
    if (!p) {
        return 0;
    }
    f.n = head_text(p, f.text, sizeof f.text);
    for (uint32_t i = 0; i < kvs_plan_n_layers(p); i++) {
        kvs__plan_put(&t, "%s", f.text);
        layer_frame(p, i, &f);
    }
    kvs__plan_put(&t, "%s", f.text);
    return t.used;
}

void kvs_plan_digest(const kvs_plan *p, uint8_t out[KVS_PLAN_DIGEST_BYTES])
{
    kvs__sha256 sha;
    frame f;
    if (!p || !out) {
        return;
    }
    kvs__sha256_init(&sha);
    f.n = head_text(p, f.text, sizeof f.text);
    for (uint32_t i = 0; i < kvs_plan_n_layers(p); i++) {
        kvs__sha256_add(&sha, f.text, f.n);
        layer_frame(p, i, &f);
    }
    kvs__sha256_add(&sha, f.text, f.n);
    kvs__sha256_end(&sha, out);
}

/* ---- schemes of others */

/* What all affine layers have in common. */
typedef struct shape {
    uint32_t n_dense, n_affine; /* layers; those that keep nothing are not counted */
    uint32_t bits, group;       /* of the first affine layer */
    bool uniform;               /* all affine ones have them */
    uint32_t start;
} shape;

static kvs_status refuse(uint32_t layer, kvs_err *err, const char *why)
{
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine", "layer %u has no scheme of mlx-bun: %s",
                     layer, why);
}

static kvs_status look_at_codecs(uint32_t i, const kvs_layer_spec *s, kvs_err *err)
{
    const kvs_codec *k = &s->k;
    const kvs_codec *v = s->kind == KVS_LAYER_LATENT ? k : &s->v;
    if (k->rotate || v->rotate) {
        return refuse(i, err, "it is rotated; use affineN instead of qN");
    }
    if (k->bits != v->bits || k->group != v->group || k->dtype != v->dtype) {
        return refuse(i, err, "keys and values are kept differently");
    }
    if (k->dtype != KVS_BF16) {
        return refuse(i, err,
                      k->bits ? "its scales are not bf16; use affineN:G/bf16"
                              : "it is dense, but not bf16");
    }
    if (s->dense_until > 0 && s->dense_dtype != KVS_BF16) {
        return refuse(i, err, "before its start it is dense, but not bf16");
    }
    return KVS_OK;
}

static kvs_status look_at_layer(const kvs_plan *p, uint32_t i, shape *sh, kvs_err *err)
{
    const kvs_layer_spec *s = kvs_plan_layer(p, i);
    if (s->kind == KVS_LAYER_BORROW || s->kind == KVS_LAYER_RECURRENT) {
        return KVS_OK;
    }
    if (kvs__plan_own_window(p, i)) {
        return refuse(i, err, "it has a window that is not the model's");
    }
    kvs_status st = look_at_codecs(i, s, err);
    if (st != KVS_OK || s->k.bits == 0) {
        sh->n_dense += st == KVS_OK;
        return st;
    }
    if (sh->n_affine++ == 0) {
        sh->bits = s->k.bits;
        sh->group = s->k.group;
        sh->start = s->dense_until;
        sh->uniform = true;
    }
    if (s->dense_until != sh->start) {
        return refuse(i, err, "it starts at another token than other layers");
    }
    sh->uniform = sh->uniform && s->k.bits == sh->bits && s->k.group == sh->group;
    return KVS_OK;
}

static void put_key(const shape *sh, uint32_t flags, kvs__plan_text *t)
{
    if (sh->n_affine == 0) {
        kvs__plan_put(t, "bf16");
        return;
    }
    if (sh->uniform && sh->n_dense == 0) {
        kvs__plan_put(t, "kv%u", sh->bits);
        if (sh->group != 64 || flags & KVS_SCHEME_GROUP) {
            kvs__plan_put(t, "-g%u", sh->group);
        }
    } else {
        kvs__plan_put(t, "config");
    }
    if (sh->start > 0 || flags & KVS_SCHEME_START) {
        kvs__plan_put(t, "-start%u", sh->start);
    }
}

static void put_string(const char *s, kvs__plan_text *t)
{
    kvs__plan_put(t, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        const char *at = strchr("\bb\ff\nn\rr\tt", c);
        if (c == '"' || c == '\\') {
            kvs__plan_put(t, "\\%c", c);
        } else if (c < 0x20 && at) {
            kvs__plan_put(t, "\\%c", at[1]);
        } else {
            kvs__plan_put(t, c < 0x20 ? "\\u%04x" : "%c", c);
        }
    }
    kvs__plan_put(t, "\"");
}

/* The affine layers as JSON, one after another, each by fmt(layer, bits, group). */
static void put_layers(const kvs_plan *p, bool names, kvs__plan_text *t)
{
    const char *sep = "[";
    for (uint32_t i = 0; i < kvs_plan_n_layers(p); i++) {
        const kvs_layer_spec *s = kvs_plan_layer(p, i);
        bool keeps = s->kind == KVS_LAYER_ATTENTION || s->kind == KVS_LAYER_LATENT;
        if (!keeps || s->k.bits == 0) {
            continue;
        }
        kvs__plan_put(
            t, names ? "%s{\"layer_idx\": %u, \"bits\": %u, \"group_size\": %u}" : "%s[%u,%u,%u]",
            sep, i, s->k.bits, s->k.group);
        sep = names ? ", " : ",";
    }
    kvs__plan_put(t, sep[0] == '[' ? "[]" : "]");
}

static kvs_status put_namespace(const kvs_plan *p, const shape *sh, const kvs_scheme_opts *o,
                                kvs__plan_text *t, kvs_err *err)
{
    if (kvs_plan_kv_block(p) == 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "a plan that is not paged has no namespace of its own");
    }
    kvs__plan_put(t, "[\"paged-v1\",%u,", kvs_plan_kv_block(p));
    if (sh->n_affine == 0) {
        kvs__plan_put(t, "0,64");
    } else if (sh->uniform && sh->n_dense == 0) {
        kvs__plan_put(t, "%u,%u", sh->bits, sh->group);
    } else {
        kvs__plan_put(t, "\"layers\",");
        put_layers(p, false, t);
    }
    kvs__plan_put(t, ",%s,", o->flags & KVS_SCHEME_DIRECT ? "true" : "false");
    put_string(o->base ? o->base : "", t);
    kvs__plan_put(t, "]");
    return KVS_OK;
}

kvs_status kvs_plan_scheme(const kvs_plan *p, const kvs_scheme_opts *opts, char *dst, size_t n,
                           kvs_err *err)
{
    kvs_scheme_opts o = KVS_SCHEME_OPTS_INIT;
    shape sh = {0, 0, 0, 0, true, 0};
    kvs__plan_text t = {dst, n, 0};
    if (!p || (!dst && n > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "plan or dst is NULL");
    }
    kvs_status st = opts ? kvs__opts_read(&o, sizeof o, opts, "kvs_scheme_opts", err) : KVS_OK;
    if (st == KVS_OK &&
        ((uint32_t)o.form > KVS_SCHEME_KV_CONFIG || o.flags >= (uint32_t)KVS_SCHEME_DIRECT * 2)) {
        st = kvs__fail(err, KVS_E_INVAL, "engine", "form %d, flags 0x%x of kvs_scheme_opts",
                       (int)o.form, o.flags);
    }
    for (uint32_t i = 0; st == KVS_OK && i < kvs_plan_n_layers(p); i++) {
        st = look_at_layer(p, i, &sh, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    switch (o.form) {
    case KVS_SCHEME_KEY:
        put_key(&sh, o.flags, &t);
        break;
    case KVS_SCHEME_NAMESPACE:
        st = put_namespace(p, &sh, &o, &t, err);
        break;
    case KVS_SCHEME_KV_CONFIG:
        put_layers(p, true, &t);
        break;
    }
    if (st == KVS_OK && t.used >= n) {
        st = kvs__fail(err, KVS_E_RANGE, "engine", "the scheme takes %zu bytes, dst has %zu",
                       t.used + 1, n);
    }
    return st;
}
