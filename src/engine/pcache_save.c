/* SPDX-License-Identifier: MIT */
/* pcache_save.c: writes a prompt-cache file of mlx-lm (interchange.h; pcache_form.c chooses the
 * classes).
 *
 * One walk over the layers lists everything that becomes a tensor; metadata is declared from that
 * list, then the tensors, then their bytes follow in the same order, one plane in memory at a time.
 * Numbers live in one pool of 32-bit integers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/pcache_save.h"
#include "engine/safetensors_write.h"
#include "engine/token_utf8.h"
#include "state/layer.h"

typedef enum item_kind { PLANE, SCALAR, FLAG, STRING, NONE, INTS, ARRAY } item_kind;

/* A tensor to be. */
typedef struct item {
    char name[32];
    item_kind kind;
    uint32_t out; /* index of the layer's kvs__pc_out */
    uint8_t side, plane;
    size_t at, n; /* of the pool; FLAG: one byte */
} item;

typedef struct saver {
    kvs_ctx *ctx;
    kvs__pc_source src;
    const kvs_prompt_save_opts *o;
    kvs__st_writer *w;
    kvs__pc_out *out; /* [n_out] */
    uint32_t n_out, cap_out;
    item *items;
    size_t n_items, cap_items;
    int32_t *pool;
    size_t n_pool, cap_pool;
} saver;

static const char *class_name(kvs_prompt_class cls)
{
    static const char *const names[] = {
        "KVCache",           "QuantizedKVCache", "RotatingKVCache", "RotatingQuantizedKVCache",
        "ChunkedKVCache",    "ArraysCache",      "BatchKVCache",    "BatchRotatingKVCache",
        "ConcatenateKVCache"};
    return names[cls];
}

static bool is_new(const saver *s)
{
    return s->o->layout == KVS_PROMPT_MLX_LM_032;
}

/* ---- the list of tensors */

static kvs_status add_int(saver *s, int64_t v, kvs_err *err)
{
    int32_t *p = kvs__grow(s->ctx, s->pool, &s->cap_pool, s->n_pool, s->n_pool + 1, sizeof *p);
    if (!p) {
        return kvs__nomem(err, "engine", sizeof *p);
    }
    s->pool = p;
    s->pool[s->n_pool++] = (int32_t)v;
    return KVS_OK;
}

static kvs_status add_item(saver *s, item it, kvs_err *err)
{
    item *p = kvs__grow(s->ctx, s->items, &s->cap_items, s->n_items, s->n_items + 1, sizeof *p);
    if (!p) {
        return kvs__nomem(err, "engine", sizeof *p);
    }
    s->items = p;
    s->items[s->n_items++] = it;
    return KVS_OK;
}

/* "3", or "3.1.0" of a member (before 0.32.0 "3.1"). */
static void state_path(const saver *s, const kvs__pc_out *o, char dst[24])
{
    if (o->list == 0) {
        (void)snprintf(dst, 24, "%u", o->entry);
    } else {
        (void)snprintf(dst, 24, is_new(s) ? "%u.%u.0" : "%u.%u", o->entry, o->member);
    }
}

static kvs_status add_field(saver *s, uint32_t i, uint32_t field, item_kind kind, const int64_t *v,
                            size_t n, kvs_err *err)
{
    char path[24];
    item it = {.kind = kind, .out = i, .at = s->n_pool, .n = n};
    kvs_status st = KVS_OK;
    state_path(s, &s->out[i], path);
    (void)snprintf(it.name, sizeof it.name, "%s.%u", path, field);
    for (size_t k = 0; st == KVS_OK && k < n; k++) {
        st = add_int(s, v[k], err);
    }
    return st == KVS_OK ? add_item(s, it, err) : st;
}

static kvs_status add_planes(saver *s, uint32_t i, kvs_err *err)
{
    const kvs__pc_out *o = &s->out[i];
    char path[24];
    kvs_status st = KVS_OK;
    if (o->columns == 0) {
        st = add_field(s, i, 0, NONE, NULL, 0, err);
        return st == KVS_OK ? add_field(s, i, 1, NONE, NULL, 0, err) : st;
    }
    state_path(s, o, path);
    uint8_t n = o->codec[0].bits > 0 ? 3 : 1;
    for (uint8_t side = 0; side < 2; side++) {
        for (uint8_t p = 0; st == KVS_OK && p < n; p++) {
            item it = {.kind = PLANE, .out = i, .side = side, .plane = p};
            (void)snprintf(it.name, sizeof it.name, n > 1 ? "%s.%u.%u" : "%s.%u", path, side, p);
            st = add_item(s, it, err);
        }
    }
    return st;
}

/* offset and left_padding, one number a row. */
static kvs_status add_rows(saver *s, uint32_t i, kvs_err *err)
{
    const kvs__pc_out *o = &s->out[i];
    uint32_t n = kvs__pc_n_rows(&s->src);
    kvs_status st = KVS_OK;
    for (uint32_t field = 2; st == KVS_OK && field < 4; field++) {
        char path[24];
        item it = {.kind = INTS, .out = i, .at = s->n_pool, .n = n};
        state_path(s, o, path);
        (void)snprintf(it.name, sizeof it.name, "%s.%u", path, field);
        for (uint32_t r = 0; st == KVS_OK && r < n; r++) {
            kvs__pc_held h = kvs__pc_held_by(&s->src, o, r);
            int64_t padding = (int64_t)o->columns - (h.offset - h.begin);
            st = add_int(s, field == 2 ? h.offset : padding, err);
        }
        st = st == KVS_OK ? add_item(s, it, err) : st;
    }
    return st;
}

/* Numbers of a cache in the order of its state since 0.32.0; returns how many. */
static size_t state_numbers(const kvs__pc_out *o, int64_t v[8])
{
    size_t n = 0;
    switch (o->cls) {
    case KVS_PROMPT_QUANTIZED:
        v[n++] = o->offset;
        v[n++] = o->codec[0].group;
        v[n++] = o->codec[0].bits;
        break;
    case KVS_PROMPT_ROTATING:
        v[n++] = o->offset;
        v[n++] = o->keep;
        v[n++] = o->max_size;
        v[n++] = o->index;
        break;
    case KVS_PROMPT_CHUNKED:
        v[n++] = o->offset;
        v[n++] = o->chunk;
        v[n++] = 0;
        break;
    case KVS_PROMPT_BATCH_KV:
        v[n++] = o->index;
        break;
    case KVS_PROMPT_BATCH_ROTATING:
        v[n++] = o->max_size;
        v[n++] = o->offset;
        v[n++] = o->index;
        break;
    default:
        v[n++] = o->offset;
        break;
    }
    return n;
}

/* The two arrays of recurrent state, then, since 0.32.0, left_padding and lengths, which are None. */
static kvs_status add_arrays(saver *s, uint32_t i, kvs_err *err)
{
    const kvs__pc_out *o = &s->out[i];
    const kvs_recurrent_spec *r = kvs_cache_spec(s->src.first, o->layer)->recurrent;
    char path[24];
    kvs_status st = KVS_OK;
    state_path(s, o, path);
    for (uint8_t k = 0; st == KVS_OK && k < 2; k++) {
        bool none = o->offset == 0 || (k == 0 && r->conv_dim == 0);
        item it = {.kind = none ? NONE : ARRAY, .out = i, .plane = k};
        (void)snprintf(it.name, sizeof it.name, is_new(s) ? "%s.0.%u" : "%s.%u", path, k);
        st = add_item(s, it, err);
    }
    for (uint32_t field = 1; st == KVS_OK && is_new(s) && field < 3; field++) {
        st = add_field(s, i, field, NONE, NULL, 0, err);
    }
    return st;
}

static kvs_status add_attention(saver *s, uint32_t i, kvs_err *err)
{
    const kvs__pc_out *o = &s->out[i];
    bool batch = kvs__pc_n_rows(&s->src) > 1;
    int64_t v[8];
    kvs_status st = add_planes(s, i, err);
    st = st == KVS_OK && batch ? add_rows(s, i, err) : st;
    size_t n = is_new(s) ? state_numbers(o, v) : 0;
    uint32_t field = batch ? 4 : 2;
    for (size_t k = 0; st == KVS_OK && k < n; k++) {
        st = add_field(s, i, field++, SCALAR, &v[k], 1, err);
    }
    if (st == KVS_OK && is_new(s) && o->cls == KVS_PROMPT_BATCH_ROTATING) {
        const int64_t no = 0;
        st = add_field(s, i, field, FLAG, &no, 1, err);
    }
    return st;
}

static kvs_status list_leaf(saver *s, uint32_t i, kvs_err *err)
{
    const kvs__pc_out *o = &s->out[i];
    kvs_status st = o->cls == KVS_PROMPT_ARRAYS ? add_arrays(s, i, err) : add_attention(s, i, err);
    if (!is_new(s)) {
        return st;
    }
    if (st == KVS_OK && o->list != 0) { /* the class of a member is part of the list's state */
        const char *name = class_name(o->cls);
        int64_t text[40];
        size_t len = strlen(name);
        for (size_t k = 0; k < len; k++) {
            text[k] = (unsigned char)name[k];
        }
        st = add_field(s, i, 0, STRING, text, len, err);
        if (st == KVS_OK) {
            item *it = &s->items[s->n_items - 1];
            (void)snprintf(it->name, sizeof it->name, "%u.%u.1", o->entry, o->member);
        }
    }
    return st;
}

/* ---- metadata */

static kvs_status meta_number(saver *s, const char *prefix, size_t i, int64_t v, kvs_err *err)
{
    char key[48];
    char text[24];
    (void)snprintf(key, sizeof key, "%s.%zu", prefix, i);
    (void)snprintf(text, sizeof text, "%lld", (long long)v);
    return kvs__st_meta(s->w, key, text, err);
}

/* Before 0.32.0: the numbers of a cache, as text. */
static kvs_status meta_numbers(saver *s, const kvs__pc_out *o, kvs_err *err)
{
    char prefix[40];
    int64_t v[8];
    size_t n = 0;
    if (o->list == 0) {
        (void)snprintf(prefix, sizeof prefix, "0.%u", o->entry);
    } else {
        (void)snprintf(prefix, sizeof prefix, "0.%u.1.%u", o->entry, o->member);
    }
    switch (o->cls) {
    case KVS_PROMPT_QUANTIZED:
        n = state_numbers(o, v);
        break;
    case KVS_PROMPT_ROTATING:
    case KVS_PROMPT_ROTATING_QUANTIZED:
        v[n++] = o->keep;
        v[n++] = o->max_size;
        v[n++] = o->offset;
        v[n++] = o->index;
        if (o->cls == KVS_PROMPT_ROTATING_QUANTIZED) {
            v[n++] = o->codec[0].group;
            v[n++] = o->codec[0].bits;
        }
        break;
    case KVS_PROMPT_CHUNKED:
        v[n++] = o->chunk;
        v[n++] = 0;
        break;
    case KVS_PROMPT_BATCH_ROTATING:
        n = state_numbers(o, v);
        break;
    default:
        return kvs__st_meta(s->w, prefix, "", err);
    }
    kvs_status st = KVS_OK;
    for (size_t i = 0; st == KVS_OK && i < n; i++) {
        st = meta_number(s, prefix, i, v[i], err);
    }
    if (st == KVS_OK && o->cls == KVS_PROMPT_BATCH_ROTATING) {
        (void)snprintf(prefix + strlen(prefix), 4, ".%zu", n);
        st = kvs__st_meta(s->w, prefix, "False", err);
    }
    return st;
}

static kvs_status meta_classes(saver *s, kvs_err *err)
{
    char key[48];
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; st == KVS_OK && i < s->n_out; i++) {
        const kvs__pc_out *o = &s->out[i];
        const char *name = class_name(o->cls);
        if (o->list != 0 && !is_new(s)) {
            (void)snprintf(key, sizeof key, "0.%u.0.%u", o->entry, o->member);
            st = kvs__st_meta(s->w, key, name, err);
        }
        if (st == KVS_OK && o->member == 0) {
            (void)snprintf(key, sizeof key, is_new(s) ? "1.%u" : "2.%u", o->entry);
            st = kvs__st_meta(s->w, key, o->list ? "CacheList" : name, err);
        }
        if (st == KVS_OK && !is_new(s)) {
            st = meta_numbers(s, o, err);
        }
    }
    return st;
}

/* Since 0.32.0: which tensors stand for something that is none. */
static kvs_status meta_scalars(saver *s, kvs_err *err)
{
    char key[48];
    uint32_t n = 1;
    kvs_status st = kvs__st_meta(s->w, "2.0", "", err);
    for (size_t i = 0; st == KVS_OK && i < s->n_items; i++) {
        const item *it = &s->items[i];
        const char *kind = it->kind == SCALAR || it->kind == FLAG ? "scalar"
                           : it->kind == STRING                   ? "string"
                           : it->kind == NONE                     ? "none"
                                                                  : NULL;
        if (!kind) {
            continue;
        }
        (void)snprintf(key, sizeof key, "2.%u.0", n);
        st = kvs__st_meta(s->w, key, it->name, err);
        (void)snprintf(key, sizeof key, "2.%u.1", n++);
        st = st == KVS_OK ? kvs__st_meta(s->w, key, kind, err) : st;
    }
    return st;
}

/* mlx-lm makes a level of each dot and a list of names that are numbers. */
static kvs_status check_key(const saver *s, uint32_t i, kvs_err *err)
{
    const char *key = s->o->meta[i].key;
    const char *value = s->o->meta[i].value;
    if (!key || !value || kvs__utf8_valid(key, strlen(key)) != strlen(key) ||
        kvs__utf8_valid(value, strlen(value)) != strlen(value)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "metadata %u is NULL or no UTF-8", i);
    }
    bool same = s->o->tokens && strcmp(key, "kvstate_tokens") == 0;
    for (uint32_t k = 0; k < i && !same; k++) {
        same = strcmp(key, s->o->meta[k].key) == 0;
    }
    if (same || key[0] == '\0' || strchr(key, '.') || strchr("0123456789+- \t\n", key[0])) {
        return kvs__fail(err, KVS_E_INVAL, "engine",
                         "metadata \"%.60s\": a name is given once, has no dot and does not begin "
                         "like a number",
                         key);
    }
    return KVS_OK;
}

static kvs_status meta_tokens(saver *s, const char *prefix, kvs_err *err)
{
    char key[24];
    size_t bytes = 0;
    if (!s->o->tokens) {
        return KVS_OK;
    }
    if (!kvs__mul_size(s->o->n_tokens, 12, &bytes) || !kvs__add_size(bytes, 1, &bytes)) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "%zu tokens overflow", s->o->n_tokens);
    }
    char *text = kvs__alloc(s->ctx, bytes);
    if (!text) {
        return kvs__nomem(err, "engine", bytes);
    }
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < s->o->n_tokens; i++) {
        int len = snprintf(text + at, bytes - at, i ? " %d" : "%d", s->o->tokens[i]);
        at += len > 0 ? (size_t)len : 0;
    }
    (void)snprintf(key, sizeof key, "%s.kvstate_tokens", prefix);
    kvs_status st = kvs__st_meta(s->w, key, text, err);
    kvs__free(s->ctx, text, bytes);
    return st;
}

static kvs_status meta_user(saver *s, kvs_err *err)
{
    const char *prefix = is_new(s) ? "0" : "1";
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; st == KVS_OK && i < s->o->n_meta; i++) {
        st = check_key(s, i, err);
        if (st == KVS_OK) {
            size_t bytes = strlen(s->o->meta[i].key) + 3;
            char *key = kvs__alloc(s->ctx, bytes);
            if (!key) {
                return kvs__nomem(err, "engine", bytes);
            }
            (void)snprintf(key, bytes, "%s.%s", prefix, s->o->meta[i].key);
            st = kvs__st_meta(s->w, key, s->o->meta[i].value, err);
            kvs__free(s->ctx, key, bytes);
        }
    }
    return st == KVS_OK ? meta_tokens(s, prefix, err) : st;
}

/* ---- tensors */

static kvs__st_dtype type_of(const kvs_codec *c, uint8_t plane)
{
    if (c->bits > 0 && plane == 0) {
        return KVS__ST_U32;
    }
    return c->dtype == KVS_F32 ? KVS__ST_F32 : c->dtype == KVS_F16 ? KVS__ST_F16 : KVS__ST_BF16;
}

static size_t units_of(const kvs__pc_out *o, const item *it)
{
    const kvs_codec *c = &o->codec[it->side];
    size_t dim = o->dim[it->side];
    return c->bits == 0 ? dim : it->plane == 0 ? dim * c->bits / 32 : dim / c->group;
}

static kvs_status declare(saver *s, const item *it, kvs_err *err)
{
    const kvs__pc_out *o = &s->out[it->out];
    switch (it->kind) {
    case PLANE: {
        size_t dims[4] = {kvs__pc_n_rows(&s->src), o->heads, o->columns, units_of(o, it)};
        return kvs__st_tensor_declare(s->w, it->name, type_of(&o->codec[it->side], it->plane), 4,
                                      dims, err);
    }
    case NONE:
        return kvs__st_tensor_declare(s->w, it->name, KVS__ST_F32, 1, &it->n, err);
    case STRING:
    case INTS:
        return kvs__st_tensor_declare(s->w, it->name, KVS__ST_I32, 1, &it->n, err);
    case ARRAY: {
        const kvs_recurrent_spec *r = kvs_cache_spec(s->src.first, o->layer)->recurrent;
        size_t conv[3] = {kvs__pc_n_rows(&s->src), r->conv_taps - 1, r->conv_dim};
        size_t state[4] = {kvs__pc_n_rows(&s->src), r->n_heads, r->head_dim, r->state_dim};
        return kvs__st_tensor_declare(s->w, it->name,
                                      it->plane == 0 ? kvs__pc_dtype(r->conv_dtype) : KVS__ST_F32,
                                      it->plane == 0 ? 3 : 4, it->plane == 0 ? conv : state, err);
    }
    case SCALAR:
    case FLAG:
        break;
    }
    return kvs__st_tensor_declare(s->w, it->name, it->kind == FLAG ? KVS__ST_BOOL : KVS__ST_I32, 0,
                                  NULL, err);
}

/* One plane of one row, [heads][columns][units], and the room to export a part of it. */
typedef struct plane_job {
    const kvs_cache *cache;
    const kvs__pc_out *o;
    const item *it;
    size_t row_bytes;  /* in the file */
    size_t full_bytes; /* of what the cache exports: a latent row has both sides */
    size_t at;         /* of this side in that */
    unsigned char *plane;
    unsigned char *part;
} plane_job;

/* Positions [begin, begin + n) to columns from col on. */
static kvs_status export_range(const plane_job *j, int64_t begin, size_t n, size_t col,
                               kvs_err *err)
{
    bool latent = j->full_bytes != j->row_bytes;
    kvs_planes p = KVS_PLANES_INIT;
    if (n == 0) {
        return KVS_OK;
    }
    *(j->it->side == 0 || latent ? &p.k[j->it->plane] : &p.v[j->it->plane]) = j->part;
    kvs_status st = kvs_cache_export(j->cache, j->o->layer, begin, n, &p, err);
    for (size_t h = 0; st == KVS_OK && h < j->o->heads; h++) {
        unsigned char *to = j->plane + (h * j->o->columns + col) * j->row_bytes;
        const unsigned char *from = j->part + h * n * j->full_bytes + j->at;
        for (size_t i = 0; latent && i < n; i++) {
            memcpy(to + i * j->row_bytes, from + i * j->full_bytes, j->row_bytes);
        }
        if (!latent) {
            memcpy(to, from, n * j->row_bytes);
        }
    }
    return st;
}

static kvs_status write_row(saver *s, plane_job *j, uint32_t row, size_t bytes, kvs_err *err)
{
    kvs__pc_held h = kvs__pc_held_by(&s->src, j->o, row);
    size_t n = (size_t)(h.offset - h.begin);
    j->cache = kvs__pc_row(&s->src, row);
    if (!j->plane) {
        return kvs__nomem(err, "engine", bytes);
    }
    memset(j->plane, 0, bytes);
    kvs_status st = export_range(j, 0, (size_t)h.n_sinks, 0, err);
    st = st == KVS_OK ? export_range(j, h.begin, n, j->o->columns - n, err) : st;
    return st == KVS_OK ? kvs__st_data(s->w, j->plane, bytes, err) : st;
}

static kvs_status write_plane(saver *s, const item *it, kvs_err *err)
{
    const kvs__pc_out *o = &s->out[it->out];
    size_t unit = kvs__st_dtype_bits(type_of(&o->codec[it->side], it->plane)) / 8;
    item other = *it;
    other.side = !it->side;
    bool latent = kvs_cache_spec(s->src.first, o->layer)->kind == KVS_LAYER_LATENT;
    plane_job j = {.o = o, .it = it, .row_bytes = units_of(o, it) * unit};
    size_t rest = units_of(o, &other) * unit;
    j.full_bytes = latent ? j.row_bytes + rest : j.row_bytes;
    j.at = latent && it->side == 1 ? rest : 0;
    size_t rows = 0;
    size_t bytes = 0;
    size_t full = 0;
    if (!kvs__mul_size(o->heads, o->columns, &rows) || !kvs__mul_size(rows, j.row_bytes, &bytes) ||
        !kvs__mul_size(rows, j.full_bytes, &full)) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "layer %u overflows", o->layer);
    }
    j.plane = kvs__alloc(s->ctx, bytes);
    j.part = kvs__alloc(s->ctx, full);
    kvs_status st = j.part ? KVS_OK : kvs__nomem(err, "engine", full);
    for (uint32_t r = 0; st == KVS_OK && r < kvs__pc_n_rows(&s->src); r++) {
        st = write_row(s, &j, r, bytes, err);
    }
    kvs__free(s->ctx, j.plane, bytes);
    kvs__free(s->ctx, j.part, full);
    return st;
}

/* One array of recurrent state, row after row. */
static kvs_status write_array(saver *s, const item *it, kvs_err *err)
{
    const kvs__pc_out *o = &s->out[it->out];
    const kvs_recurrent_spec *r = kvs_cache_spec(s->src.first, o->layer)->recurrent;
    size_t bytes = it->plane == 0 ? (size_t)(r->conv_taps - 1) * r->conv_dim *
                                        (kvs__st_dtype_bits(kvs__pc_dtype(r->conv_dtype)) / 8)
                                  : (size_t)r->n_heads * r->head_dim * r->state_dim * sizeof(float);
    void *buf = kvs__alloc(s->ctx, bytes);
    kvs_status st = buf ? KVS_OK : kvs__nomem(err, "engine", bytes);
    for (uint32_t row = 0; st == KVS_OK && row < kvs__pc_n_rows(&s->src); row++) {
        const kvs_cache *c = kvs__pc_row(&s->src, row);
        kvs_recurrent_planes p = KVS_RECURRENT_PLANES_INIT;
        if (it->plane == 0) {
            p.conv = buf;
        } else {
            p.state = buf;
        }
        st = kvs_recurrent_export(c, o->layer, kvs_cache_length(c, o->layer), &p, err);
        st = st == KVS_OK ? kvs__st_data(s->w, buf, bytes, err) : st;
    }
    kvs__free(s->ctx, buf, bytes);
    return st;
}

static kvs_status write_item(saver *s, const item *it, kvs_err *err)
{
    if (it->kind == ARRAY) {
        return write_array(s, it, err);
    }
    if (it->kind == PLANE) {
        return write_plane(s, it, err);
    }
    if (it->kind == FLAG) {
        unsigned char flag = s->pool[it->at] != 0;
        return kvs__st_data(s->w, &flag, 1, err);
    }
    return it->n == 0 ? KVS_OK : kvs__st_data(s->w, s->pool + it->at, it->n * sizeof *s->pool, err);
}

/* ---- saving */

static kvs_status write_all(saver *s, const char *path, kvs_err *err)
{
    kvs_status st = kvs__pc_forms(&s->src, s->out, &s->n_out, err);
    for (uint32_t i = 0; st == KVS_OK && i < s->n_out; i++) {
        st = list_leaf(s, i, err);
    }
    st = st == KVS_OK ? kvs__st_writer_new(s->ctx, &s->w, err) : st;
    st = st == KVS_OK ? meta_user(s, err) : st;
    st = st == KVS_OK ? meta_classes(s, err) : st;
    st = st == KVS_OK && is_new(s) ? meta_scalars(s, err) : st;
    for (size_t i = 0; st == KVS_OK && i < s->n_items; i++) {
        st = declare(s, &s->items[i], err);
    }
    st = st == KVS_OK ? kvs__st_begin(s->w, kvs__vfs_posix(), path, err) : st;
    for (size_t i = 0; st == KVS_OK && i < s->n_items; i++) {
        st = write_item(s, &s->items[i], err);
    }
    return st == KVS_OK ? kvs__st_commit(s->w, err) : st;
}

static bool same_recurrent(const kvs_recurrent_spec *a, const kvs_recurrent_spec *b)
{
    return (!a && !b) || (a && b && a->rule == b->rule && a->n_heads == b->n_heads &&
                          a->head_dim == b->head_dim && a->state_dim == b->state_dim &&
                          a->conv_dim == b->conv_dim && a->conv_taps == b->conv_taps &&
                          a->conv_dtype == b->conv_dtype);
}

static bool same_layer(const kvs_layer_spec *a, const kvs_layer_spec *b)
{
    if (!same_recurrent(a->recurrent, b->recurrent)) {
        return false;
    }
    return a->kind == b->kind && a->n_kv_heads == b->n_kv_heads && a->k_dim == b->k_dim &&
           a->v_dim == b->v_dim && a->k.bits == b->k.bits && a->k.dtype == b->k.dtype &&
           a->v.bits == b->v.bits && a->v.dtype == b->v.dtype && a->window == b->window &&
           a->sinks == b->sinks && a->dense_until == b->dense_until;
}

static kvs_status check(const kvs_cache *cache, const kvs_prompt_save_opts *o, kvs_err *err)
{
    uint32_t n = kvs_cache_n_layers(cache);
    if ((uint32_t)o->layout > KVS_PROMPT_MLX_LM_031 || (o->n_meta > 0 && !o->meta) ||
        (o->n_more > 0 && !o->more) || (o->forms && o->n_forms != n)) {
        return kvs__fail(err, KVS_E_INVAL, "engine",
                         "layout %d, %u metadata, %u more rows, %u forms for %u layers",
                         (int)o->layout, o->n_meta, o->n_more, o->n_forms, n);
    }
    for (uint32_t r = 0; r < o->n_more; r++) {
        bool same = o->more[r] && kvs_cache_n_layers(o->more[r]) == n;
        for (uint32_t i = 0; same && i < n; i++) {
            same = same_layer(kvs_cache_spec(cache, i), kvs_cache_spec(o->more[r], i));
        }
        if (!same) {
            return kvs__fail(err, KVS_E_INVAL, "engine", "row %u has another plan", r + 1);
        }
    }
    int64_t length = -1;
    for (uint32_t i = 0; length < 0 && i < n; i++) {
        length = kvs_cache_length(cache, i);
    }
    if (o->tokens && (int64_t)o->n_tokens != length) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "%zu tokens, the cache holds %lld",
                         o->n_tokens, (long long)length);
    }
    for (size_t i = 0; o->tokens && i < o->n_tokens; i++) {
        if (o->tokens[i] < 0) {
            return kvs__fail(err, KVS_E_INVAL, "engine", "token %d at index %zu", o->tokens[i], i);
        }
    }
    return KVS_OK;
}

kvs_status kvs_prompt_cache_save(const kvs_cache *cache, const kvs_prompt_save_opts *opts,
                                 const char *path, kvs_err *err)
{
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    if (!cache || !path || path[0] == '\0') {
        return kvs__fail(err, KVS_E_INVAL, "engine", "cache or path is NULL or empty");
    }
    kvs_status st = opts ? kvs__opts_read(&o, sizeof o, opts, "kvs_prompt_save_opts", err) : KVS_OK;
    st = st == KVS_OK ? check(cache, &o, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    saver s;
    memset(&s, 0, sizeof s);
    s.ctx = cache->ctx;
    s.src = (kvs__pc_source){cache, &o};
    s.o = &o;
    s.cap_out = kvs_cache_n_layers(cache);
    s.out = kvs__calloc(s.ctx, s.cap_out, sizeof *s.out);
    st = s.out ? write_all(&s, path, err) : kvs__nomem(err, "engine", s.cap_out * sizeof *s.out);
    kvs__st_writer_free(s.w);
    kvs__free(s.ctx, s.items, s.cap_items * sizeof *s.items);
    kvs__free(s.ctx, s.pool, s.cap_pool * sizeof *s.pool);
    kvs__free(s.ctx, s.out, s.cap_out * sizeof *s.out);
    return st;
}
