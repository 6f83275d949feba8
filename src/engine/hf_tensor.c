/* SPDX-License-Identifier: MIT */
/* hf_tensor.c: tensors of a model directory as the engine describes them, and MLX's quantised ones:
 * a weight of u32 words with scales and biases beside it.
 *
 * Bits and group come from config.json's "quantization" (the tensor's own entry, or what holds for
 * all) and must agree with the three shapes; nothing is guessed from shapes alone, since 4 bits in
 * groups of 64 and 8 bits in groups of 32 can look alike. */
#include <stdio.h>
#include <string.h>

#include "engine/hf_priv.h"

#define WEIGHT ".weight"

typedef struct scheme {
    int64_t bits;
    int64_t group;
} scheme;

static const kvs__hf_tensor *sibling(const kvs__hf *hf, kvs__str stem, const char *tail)
{
    char name[512];
    int n = snprintf(name, sizeof name, "%.*s%s", (int)stem.len, stem.ptr, tail);
    return n > 0 && (size_t)n < sizeof name ? kvs__hf_lookup(hf, name, (size_t)n) : NULL;
}

/* The object that tells of quantisation, if any. */
static kvs_status find_quantization(const kvs__hf *hf, kvs__jval *out, kvs_err *err)
{
    kvs__jval root = kvs__json_root(hf->config);
    kvs__jval q = kvs__json_get(root, "quantization");
    if (kvs__json_kind(q) != KVS__JSON_OBJECT) {
        q = kvs__json_get(root, "quantization_config");
    }
    if (kvs__json_kind(q) != KVS__JSON_OBJECT) {
        *out = (kvs__jval){NULL, 0};
        return KVS_OK;
    }
    kvs__jval method = kvs__json_get(q, "quant_method");
    kvs__jval mode = kvs__json_get(q, "mode");
    if (method.doc && !kvs__json_is(method, "mlx")) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "config.json: quantisation by \"%s\" is not read; MLX's affine is",
                         kvs__gguf_quote(kvs__json_raw(method)).text);
    }
    if (mode.doc && !kvs__json_is(mode, "affine")) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "config.json: quantization.mode \"%s\" is not read; affine is",
                         kvs__gguf_quote(kvs__json_raw(mode)).text);
    }
    *out = q;
    return KVS_OK;
}

/* Members of the quantisation by name, since there is one for every tensor of some models. */
typedef struct own_item {
    kvs__str name;
    kvs__jval value;
} own_item;

typedef struct own_entries {
    kvs__jval all;
    own_item *items; /* [members of all] */
    kvs__gguf_names index;
} own_entries;

static kvs_status index_entries(kvs__hf *hf, own_entries *own, kvs_err *err)
{
    size_t n = kvs__json_count(own->all);
    own->items = kvs__calloc(hf->ctx, n, sizeof *own->items);
    if (!own->items) {
        return kvs__nomem(err, "engine", n * sizeof *own->items);
    }
    kvs__jval name = {NULL, 0};
    kvs__jval value = {NULL, 0};
    for (n = 0; kvs__json_member(own->all, &name, &value); n++) {
        own->items[n] = (own_item){kvs__json_raw(name), value};
    }
    own->index.items = (const unsigned char *)own->items;
    own->index.stride = sizeof *own->items;
    own->index.n = n;
    return kvs__gguf_names_build(hf->ctx, &own->index, "config.json: quantization of", err);
}

static kvs_status read_scheme(const own_entries *entries, kvs__str stem, scheme *s, kvs_err *err)
{
    size_t at = kvs__gguf_names_find(&entries->index, stem.ptr, stem.len);
    kvs__jval own = at == SIZE_MAX ? (kvs__jval){NULL, 0} : entries->items[at].value;
    kvs__jval from = kvs__json_kind(own) == KVS__JSON_OBJECT ? own : entries->all;
    kvs__jval mode = kvs__json_get(from, "mode");
    if (kvs__json_kind(own) == KVS__JSON_FALSE) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "config.json says that %s is not quantised, but it has scales",
                         kvs__gguf_quote(stem).text);
    }
    if (mode.doc && !kvs__json_is(mode, "affine")) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "config.json: %s has quantisation mode \"%s\"; affine is read",
                         kvs__gguf_quote(stem).text, kvs__gguf_quote(kvs__json_raw(mode)).text);
    }
    *s = (scheme){0, 64};
    kvs__jval group = kvs__json_get(from, "group_size");
    if (!kvs__json_int(kvs__json_get(from, "bits"), &s->bits) ||
        (group.doc && !kvs__json_int(group, &s->group))) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "config.json has no quantization.bits and group_size for %s",
                         kvs__gguf_quote(stem).text);
    }
    bool bits_ok = s->bits == 2 || s->bits == 3 || s->bits == 4 || s->bits == 5 || s->bits == 6 ||
                   s->bits == 8;
    if (!bits_ok || (s->group != 32 && s->group != 64 && s->group != 128)) {
        return kvs__fail(
            err, KVS_E_UNSUPPORTED, "engine",
            "config.json: %s has %lld bits in groups of %lld; 2, 3, 4, 5, 6, 8 bits in "
            "groups of 32, 64, 128 are read",
            kvs__gguf_quote(stem).text, (long long)s->bits, (long long)s->group);
    }
    return KVS_OK;
}

static bool same_rows(const kvs__st_tensor *a, const kvs__st_tensor *b)
{
    bool same = a->n_dims == b->n_dims && a->n_dims > 0;
    for (uint32_t i = 0; same && i + 1 < a->n_dims; i++) {
        same = a->dims[i] == b->dims[i];
    }
    return same;
}

static bool is_scale_type(kvs__st_dtype d)
{
    return d == KVS__ST_F32 || d == KVS__ST_F16 || d == KVS__ST_BF16;
}

static kvs_status check_triple(const kvs__st_tensor *w, const kvs__st_tensor *s,
                               const kvs__st_tensor *b, scheme q, kvs_err *err)
{
    size_t last = w->n_dims > 0 ? w->n_dims - 1 : 0;
    size_t groups = s->dims[last];
    const char *why = NULL;
    if (!is_scale_type(s->dtype) || b->dtype != s->dtype) {
        why = "scales and biases must be F32, F16 or BF16, both the same";
    } else if (!same_rows(w, s) || !same_rows(w, b) || b->dims[last] != groups) {
        why = "scales and biases have other rows than the weight";
    } else if (groups > SIZE_MAX / 1024 || w->dims[last] > SIZE_MAX / 64 ||
               groups * (size_t)q.group * (size_t)q.bits != w->dims[last] * 32) {
        why = "words and scales disagree";
    }
    if (!why) {
        return KVS_OK;
    }
    return kvs__fail(err, KVS_E_FORMAT, "engine",
                     "tensor %s with %lld bits in groups of %lld: %s (%zu words, %zu scales a row)",
                     kvs__gguf_quote(w->name).text, (long long)q.bits, (long long)q.group, why,
                     w->dims[last], groups);
}

static kvs_status mark(kvs__hf *hf, kvs__hf_tensor *t, const own_entries *own, kvs_err *err)
{
    const size_t tail = sizeof WEIGHT - 1;
    if (t->t->dtype != KVS__ST_U32 || t->name.len <= tail ||
        memcmp(t->name.ptr + t->name.len - tail, WEIGHT, tail) != 0) {
        return KVS_OK;
    }
    kvs__str stem = {t->name.ptr, t->name.len - tail};
    const kvs__hf_tensor *s = sibling(hf, stem, ".scales");
    const kvs__hf_tensor *b = sibling(hf, stem, ".biases");
    if (!s || !b) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "tensor %s is U32 and has no %s beside it",
                         kvs__gguf_quote(t->name).text, s ? ".biases" : ".scales");
    }
    scheme how = {0, 0};
    kvs_status st = read_scheme(own, stem, &how, err);
    if (st == KVS_OK) {
        st = check_triple(t->t, s->t, b->t, how, err);
    }
    if (st == KVS_OK) {
        t->bits = (uint32_t)how.bits;
        t->group = (uint32_t)how.group;
        hf->tensors[s - hf->tensors].part = true;
        hf->tensors[b - hf->tensors].part = true;
    }
    return st;
}

static kvs_status list(kvs__hf *hf, kvs_err *err)
{
    hf->listed = kvs__calloc(hf->ctx, hf->n_tensors, sizeof *hf->listed);
    if (!hf->listed) {
        return kvs__nomem(err, "engine", hf->n_tensors * sizeof *hf->listed);
    }
    for (size_t i = 0; i < hf->n_tensors; i++) {
        if (!hf->tensors[i].part) {
            hf->listed[hf->n_listed++] = (uint32_t)i;
        }
    }
    return KVS_OK;
}

kvs_status kvs__hf_mark_affine(kvs__hf *hf, kvs_err *err)
{
    own_entries own = {{NULL, 0}, NULL, {0}};
    kvs_status st = find_quantization(hf, &own.all, err);
    if (st == KVS_OK) {
        st = index_entries(hf, &own, err);
    }
    for (size_t i = 0; st == KVS_OK && i < hf->n_tensors; i++) {
        st = mark(hf, &hf->tensors[i], &own, err);
    }
    kvs__gguf_names_free(hf->ctx, &own.index);
    kvs__free(hf->ctx, own.items, kvs__json_count(own.all) * sizeof *own.items);
    return st == KVS_OK ? list(hf, err) : st;
}

/* ---- description */

static kvs__wtype scale_type(kvs__st_dtype d)
{
    return d == KVS__ST_F32 ? KVS__W_F32 : d == KVS__ST_F16 ? KVS__W_F16 : KVS__W_BF16;
}

static kvs__wtype affine_type(uint32_t bits)
{
    switch (bits) {
    case 2:
        return KVS__W_AFF2;
    case 3:
        return KVS__W_AFF3;
    case 4:
        return KVS__W_AFF4;
    case 5:
        return KVS__W_AFF5;
    case 6:
        return KVS__W_AFF6;
    default:
        return KVS__W_AFF8;
    }
}

static void describe_affine(const kvs__hf_tensor *t, const kvs__hf *hf, kvs__tensor *out)
{
    static const char *const names[] = {
        "affine2:32", "affine2:64", "affine2:128", "affine3:32", "affine3:64", "affine3:128",
        "affine4:32", "affine4:64", "affine4:128", "affine5:32", "affine5:64", "affine5:128",
        "affine6:32", "affine6:64", "affine6:128", "",           "",           "",
        "affine8:32", "affine8:64", "affine8:128"};
    kvs__str stem = {t->name.ptr, t->name.len - (sizeof WEIGHT - 1)};
    const kvs__st_tensor *s = sibling(hf, stem, ".scales")->t;
    const kvs__st_tensor *b = sibling(hf, stem, ".biases")->t;
    uint32_t shift = t->group == 32 ? 0 : t->group == 64 ? 1 : 2;
    size_t groups = s->dims[s->n_dims - 1];
    out->row_bytes = out->ne[0] * 4; /* words */
    out->ne[0] = groups * t->group;
    out->type = affine_type(t->bits);
    out->type_name = names[(t->bits - 2) * 3 + shift];
    out->is_weight = true;
    out->bytes += s->bytes + b->bytes;
    out->affine = (kvs__waffine){.scales = s->data,
                                 .biases = b->data,
                                 .row_bytes = groups * (s->dtype == KVS__ST_F32 ? 4u : 2u),
                                 .shift = shift,
                                 .dtype = scale_type(s->dtype)};
}

void kvs__hf_describe(const kvs__hf_tensor *t, const kvs__hf *hf, kvs__tensor *out)
{
    const kvs__st_tensor *f = t->t;
    *out = (kvs__tensor){.name = t->name,
                         .type_name = kvs__st_dtype_name(f->dtype),
                         .is_weight = is_scale_type(f->dtype),
                         .type = KVS__W_F32,
                         .n_dims = f->n_dims ? f->n_dims : 1,
                         .ne = {1, 1, 1, 1},
                         .bytes = f->bytes,
                         .data = f->data};
    for (uint32_t i = 0; i < f->n_dims; i++) { /* more than four: the slowest ones together */
        uint32_t at = f->n_dims - 1 - i;
        out->ne[at < 3 ? at : 3] *= f->dims[i];
    }
    out->n_dims = out->n_dims > 4 ? 4 : out->n_dims;
    out->n_rows = out->ne[1] * out->ne[2] * out->ne[3];
    if (out->is_weight) {
        out->type = scale_type(f->dtype);
    }
    out->row_bytes = out->n_rows > 0 ? f->bytes / out->n_rows : 0;
    if (t->bits) {
        describe_affine(t, hf, out);
    }
}

bool kvs__hf_at(const kvs__hf *hf, size_t i, kvs__tensor *out)
{
    if (i >= hf->n_listed) {
        return kvs__hf_rope_tensor(hf, i - hf->n_listed, out);
    }
    kvs__hf_describe(&hf->tensors[hf->listed[i]], hf, out);
    return true;
}
