/* SPDX-License-Identifier: MIT */
/* pcache_read.c: opens a prompt-cache file of mlx-lm and checks what a load will rely on (pcache.h).
 *
 * Names are paths joined by dots. Since 0.32.0 all of a cache's state is in tensors: entry E's are
 * E.FIELD, scalars among them, and metadata has 0.KEY (the user's), 1.E (class names), 2 (which
 * tensors are scalars). Before, tensors are the arrays alone and metadata has 0.E (the numbers),
 * 1.KEY (the user's), 2.E (class names). A CacheList has its members one level deeper.
 *
 * Every number is bounded, every shape compared with its class, and kvs__pc_runs is asked for each
 * row once, so that after opening nothing can point outside a tensor. Work follows the size of the
 * header: the metadata is sorted once, look-ups are by bisection. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf_priv.h"
#include "engine/pcache.h"

#define MAX_LEAVES 65536u
#define MAX_DEPTH  4u        /* of CacheLists in each other */
#define MAX_DIM    65536u    /* of a head */
#define MAX_COUNT  INT32_MAX /* tokens, sizes: what MLX writes are 32-bit integers */

kvs_status kvs__pc_fail(const kvs_prompt_cache *f, uint32_t leaf, kvs_err *err, kvs_status status,
                        const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return kvs__fail(err, status, "engine", "%.60s: layer %u: %s", f->what, leaf, text);
}

static kvs_status bad(const kvs_prompt_cache *f, kvs_err *err, const char *what)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine", "%s: %s", f->what, what);
}

/* ---- metadata */

static int compare(kvs__str a, kvs__str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n > 0 ? memcmp(a.ptr, b.ptr, n) : 0;
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

static int by_key(const void *a, const void *b)
{
    return compare(((const kvs__pc_pair *)a)->key, ((const kvs__pc_pair *)b)->key);
}

static kvs_status read_pairs(kvs_prompt_cache *f, kvs_err *err)
{
    kvs__jval meta = kvs__safetensors_metadata(f->st);
    f->n_pairs = kvs__json_count(meta);
    f->pairs = kvs__calloc(f->ctx, f->n_pairs, sizeof *f->pairs);
    if (!f->pairs) {
        return kvs__nomem(err, "engine", f->n_pairs * sizeof *f->pairs);
    }
    kvs__jval key = {NULL, 0};
    kvs__jval value = {NULL, 0};
    for (size_t i = 0; kvs__json_member(meta, &key, &value); i++) {
        f->pairs[i] = (kvs__pc_pair){kvs__json_raw(key), kvs__json_raw(value), key, value};
    }
    if (f->n_pairs > 1) {
        qsort(f->pairs, f->n_pairs, sizeof *f->pairs, by_key);
    }
    for (size_t i = 1; i < f->n_pairs; i++) {
        if (compare(f->pairs[i - 1].key, f->pairs[i].key) == 0) {
            return bad(f, err, "metadata has a name twice");
        }
    }
    return KVS_OK;
}

/* First pair whose key is not before `key`. */
static size_t lower_bound(const kvs_prompt_cache *f, kvs__str key)
{
    size_t lo = 0;
    size_t hi = f->n_pairs;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (compare(f->pairs[mid].key, key) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static const kvs__str *find_meta(const kvs_prompt_cache *f, const char *path, const char *suffix)
{
    char name[KVS__PC_PATH + 40];
    int len = snprintf(name, sizeof name, "%s%s", path, suffix);
    kvs__str key = {name, (size_t)len};
    size_t i = lower_bound(f, key);
    return i < f->n_pairs && compare(f->pairs[i].key, key) == 0 ? &f->pairs[i].value : NULL;
}

static const kvs__st_tensor *find_tensor(const kvs_prompt_cache *f, const char *path,
                                         const char *suffix)
{
    char name[KVS__PC_PATH + 40];
    int len = snprintf(name, sizeof name, "%s%s", path, suffix);
    return kvs__safetensors_find(f->st, (kvs__str){name, (size_t)len});
}

/* A decimal number, as str(int) writes it, of at most 9 digits. */
static bool read_decimal(kvs__str s, int64_t *out)
{
    int64_t v = 0;
    bool minus = s.len > 0 && s.ptr[0] == '-';
    size_t i = minus;
    if (s.len <= i || s.len > i + 9) {
        return false;
    }
    for (; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9') {
            return false;
        }
        v = v * 10 + (s.ptr[i] - '0');
    }
    *out = minus ? -v : v;
    return true;
}

/* ---- one cache */

/* Where a cache's numbers and names are. */
typedef struct place {
    char state[KVS__PC_PATH]; /* of tensors */
    char info[KVS__PC_PATH];  /* of metadata, before 0.32.0 */
    uint32_t entry, member, depth;
} place;

static kvs_status leaf_bad(const kvs_prompt_cache *f, kvs_err *err, const char *what)
{
    return kvs__pc_fail(f, f->n_leaves, err, KVS_E_FORMAT, "%s", what);
}

/* A number of the leaf: field `field` of its state, or value `value` of its metadata. */
static kvs_status read_number(const kvs_prompt_cache *f, const place *p, const char *what,
                              uint32_t field, uint32_t value, int64_t *out, kvs_err *err)
{
    char suffix[16];
    bool good = false;
    if (f->layout == KVS_PROMPT_MLX_LM_032) {
        (void)snprintf(suffix, sizeof suffix, ".%u", field);
        const kvs__st_tensor *t = find_tensor(f, p->state, suffix);
        if (t && t->n == 1 && t->n_dims == 0 && t->dtype == KVS__ST_I32) {
            int32_t v = 0;
            memcpy(&v, t->data, sizeof v);
            *out = v;
            good = true;
        } else if (t && t->n == 1 && t->n_dims == 0 && t->dtype == KVS__ST_BOOL) {
            *out = t->data[0] != 0;
            good = true;
        }
    } else {
        (void)snprintf(suffix, sizeof suffix, ".%u", value);
        const kvs__str *s = find_meta(f, p->info, suffix);
        good = s && read_decimal(*s, out);
    }
    if (!good || *out < 0 || *out > MAX_COUNT) {
        return kvs__pc_fail(f, f->n_leaves, err, KVS_E_FORMAT, "%s is missing or no count", what);
    }
    return KVS_OK;
}

static bool is_float(const kvs__st_tensor *t, kvs_dtype *out)
{
    *out = t->dtype == KVS__ST_F32 ? KVS_F32 : t->dtype == KVS__ST_F16 ? KVS_F16 : KVS_BF16;
    return t->dtype == KVS__ST_F32 || t->dtype == KVS__ST_F16 || t->dtype == KVS__ST_BF16;
}

/* What MLX writes for None: an empty vector of f32. */
static bool is_none(const kvs__st_tensor *t)
{
    return t->dtype == KVS__ST_F32 && t->n_dims == 1 && t->n == 0;
}

static kvs_status plane_shape(const kvs_prompt_cache *f, const kvs__pc_leaf *l,
                              const kvs__st_tensor *t, kvs_err *err)
{
    if (t->n_dims != 4 || t->dims[0] != l->batch || t->dims[1] != l->heads ||
        t->dims[2] != l->columns || t->dims[3] == 0 || t->dims[3] > MAX_DIM) {
        return kvs__pc_fail(f, f->n_leaves, err, KVS_E_FORMAT,
                            "tensor %s has another shape than [%zu,%zu,%zu,dim]",
                            kvs__gguf_quote(t->name).text, l->batch, l->heads, l->columns);
    }
    return KVS_OK;
}

static kvs_status read_dense_side(const kvs_prompt_cache *f, kvs__pc_leaf *l, int side,
                                  kvs_err *err)
{
    kvs_dtype dtype = KVS_F32;
    const kvs__st_tensor *t = l->plane[side][0];
    kvs_status st = plane_shape(f, l, t, err);
    if (st == KVS_OK && !is_float(t, &dtype)) {
        st = kvs__pc_fail(f, f->n_leaves, err, KVS_E_UNSUPPORTED, "elements of type %s",
                          kvs__st_dtype_name(t->dtype));
    }
    l->dim[side] = (uint32_t)t->dims[3];
    l->codec[side] = (kvs_codec)KVS_CODEC_DENSE(dtype);
    return st;
}

static kvs_status read_affine_side(const kvs_prompt_cache *f, kvs__pc_leaf *l, int side,
                                   int64_t bits, int64_t group, kvs_err *err)
{
    const kvs__st_tensor *const *t = l->plane[side];
    kvs_dtype dtype = KVS_F32;
    kvs_status st = KVS_OK;
    for (int i = 0; i < 3 && st == KVS_OK; i++) {
        st = plane_shape(f, l, t[i], err);
    }
    if (st != KVS_OK) {
        return st;
    }
    size_t dim = t[1]->dims[3] * (size_t)group; /* both at most 65536 */
    kvs_codec c = KVS_CODEC_AFFINE((uint8_t)bits, (uint16_t)group, KVS_F32);
    if (t[0]->dtype != KVS__ST_U32 || !is_float(t[1], &dtype) || t[2]->dtype != t[1]->dtype ||
        t[2]->dims[3] != t[1]->dims[3] || dim > MAX_DIM ||
        t[0]->dims[3] * 32 != dim * (size_t)bits) {
        return leaf_bad(f, err, "words, scales and biases do not fit its bits and group size");
    }
    c.dtype = dtype;
    l->dim[side] = (uint32_t)dim;
    l->codec[side] = c;
    return KVS_OK;
}

/* Tensors of keys and values; n_planes stays 0 where there are none yet. */
static kvs_status find_planes(const kvs_prompt_cache *f, const place *p, kvs__pc_leaf *l,
                              kvs_err *err)
{
    const kvs__st_tensor *none[2] = {find_tensor(f, p->state, ".0"),
                                     find_tensor(f, p->state, ".1")};
    if (f->layout == KVS_PROMPT_MLX_LM_032 && none[0] && none[1] && is_none(none[0]) &&
        is_none(none[1])) {
        return KVS_OK;
    }
    uint32_t n = l->quantized ? 3 : 1;
    for (uint32_t side = 0; side < 2; side++) {
        for (uint32_t i = 0; i < n; i++) {
            char suffix[16];
            (void)snprintf(suffix, sizeof suffix, l->quantized ? ".%u.%u" : ".%u", side, i);
            l->plane[side][i] = find_tensor(f, p->state, suffix);
            if (!l->plane[side][i]) {
                return kvs__pc_fail(f, f->n_leaves, err, KVS_E_FORMAT, "no tensor %s%s", p->state,
                                    suffix);
            }
        }
    }
    const kvs__st_tensor *t = l->plane[0][0];
    if (t->n_dims != 4 || t->dims[0] == 0 || t->dims[1] == 0 || t->dims[0] > MAX_COUNT ||
        t->dims[1] > MAX_COUNT || t->dims[2] > MAX_COUNT) {
        return leaf_bad(f, err, "keys are no [batch,heads,tokens,dim]");
    }
    l->batch = t->dims[0];
    l->heads = t->dims[1];
    l->columns = t->dims[2];
    l->n_planes = n;
    return KVS_OK;
}

static kvs_status read_planes(const kvs_prompt_cache *f, const place *p, kvs__pc_leaf *l,
                              int64_t bits, int64_t group, kvs_err *err)
{
    bool good = !l->quantized || ((group == 32 || group == 64 || group == 128) && bits >= 2 &&
                                  bits <= 8 && bits != 7);
    if (!good) {
        return kvs__pc_fail(f, f->n_leaves, err, KVS_E_UNSUPPORTED, "%lld bits in groups of %lld",
                            (long long)bits, (long long)group);
    }
    kvs_status st = find_planes(f, p, l, err);
    for (int side = 0; st == KVS_OK && l->n_planes > 0 && side < 2; side++) {
        st = l->quantized ? read_affine_side(f, l, side, bits, group, err)
                          : read_dense_side(f, l, side, err);
    }
    return st;
}

/* Numbers by class; a column is -1 where the layout has none. */
enum { OFFSET, KEEP, MAX_SIZE, INDEX, CHUNK, START, GROUP, BITS, N_NUMBERS };

static const struct class_row {
    const char *name;
    kvs_prompt_class cls;
    bool quantized;
    int8_t field[N_NUMBERS]; /* of the state, since 0.32.0 */
    int8_t value[N_NUMBERS]; /* of the metadata, before */
} classes[] = {
    /*                                                off keep max idx chk st grp bit */
    {"KVCache",
     KVS_PROMPT_KV,
     false,
     {2, -1, -1, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, -1, -1}},
    {"QuantizedKVCache",
     KVS_PROMPT_QUANTIZED,
     true,
     {2, -1, -1, -1, -1, -1, 3, 4},
     {0, -1, -1, -1, -1, -1, 1, 2}},
    {"RotatingKVCache",
     KVS_PROMPT_ROTATING,
     false,
     {2, 3, 4, 5, -1, -1, -1, -1},
     {2, 0, 1, 3, -1, -1, -1, -1}},
    {"RotatingQuantizedKVCache",
     KVS_PROMPT_ROTATING_QUANTIZED,
     true,
     {-1, -1, -1, -1, -1, -1, -1, -1},
     {2, 0, 1, 3, -1, -1, 4, 5}},
    {"ChunkedKVCache",
     KVS_PROMPT_CHUNKED,
     false,
     {2, -1, -1, -1, 3, 4, -1, -1},
     {-1, -1, -1, -1, 0, 1, -1, -1}},
    {"BatchKVCache",
     KVS_PROMPT_BATCH_KV,
     false,
     {-1, -1, -1, 4, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, -1, -1}},
    {"BatchRotatingKVCache",
     KVS_PROMPT_BATCH_ROTATING,
     false,
     {5, -1, 4, 6, -1, -1, -1, -1},
     {1, -1, 0, 2, -1, -1, -1, -1}},
    {"ConcatenateKVCache",
     KVS_PROMPT_CONCATENATE,
     false,
     {-1, -1, -1, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, -1, -1}},
    {"ArraysCache",
     KVS_PROMPT_ARRAYS,
     false,
     {-1, -1, -1, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, -1, -1}},
    {"MambaCache",
     KVS_PROMPT_ARRAYS,
     false,
     {-1, -1, -1, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, -1, -1}},
};

static kvs_status read_numbers(const kvs_prompt_cache *f, const place *p,
                               const struct class_row *row, int64_t v[N_NUMBERS], kvs_err *err)
{
    static const char *const names[] = {"offset", "keep",  "max_size", "index",
                                        "chunk",  "start", "group",    "bits"};
    const int8_t *at = f->layout == KVS_PROMPT_MLX_LM_032 ? row->field : row->value;
    kvs_status st = KVS_OK;
    for (int i = 0; st == KVS_OK && i < N_NUMBERS; i++) {
        v[i] = 0;
        if (at[i] >= 0) {
            st = read_number(f, p, names[i], (uint32_t)at[i], (uint32_t)at[i], &v[i], err);
        }
    }
    return st;
}

static const kvs__st_tensor *find_ints(const kvs_prompt_cache *f, const place *p,
                                       const char *suffix, size_t n)
{
    const kvs__st_tensor *t = find_tensor(f, p->state, suffix);
    return t && t->dtype == KVS__ST_I32 && t->n_dims == 1 && t->n == n ? t : NULL;
}

static kvs_status read_batch(const kvs_prompt_cache *f, const place *p, kvs__pc_leaf *l,
                             kvs_err *err)
{
    if (l->n_planes == 0) {
        const kvs__st_tensor *t = find_tensor(f, p->state, ".2");
        l->batch = t ? t->n : 0;
    }
    l->offsets = find_ints(f, p, ".2", l->batch);
    l->padding = find_ints(f, p, ".3", l->batch);
    if (!l->offsets || !l->padding || l->batch == 0) {
        return leaf_bad(f, err, "offset or left_padding is missing or not one number a row");
    }
    if (l->cls == KVS_PROMPT_BATCH_KV && f->layout == KVS_PROMPT_MLX_LM_031) {
        l->index = (int64_t)l->columns;
    }
    if (l->cls == KVS_PROMPT_BATCH_ROTATING) {
        int64_t turned = 0;
        const kvs__str *s = find_meta(f, p->info, ".3");
        if (f->layout == KVS_PROMPT_MLX_LM_032) {
            kvs_status st = read_number(f, p, "rotated", 7, 0, &turned, err);
            l->rotated = turned != 0;
            return st;
        }
        l->rotated = s && s->len == 4 && memcmp(s->ptr, "True", 4) == 0;
    }
    return KVS_OK;
}

static kvs_status read_arrays(const kvs_prompt_cache *f, const place *p, kvs__pc_leaf *l,
                              kvs_err *err)
{
    const char *prefix = f->layout == KVS_PROMPT_MLX_LM_032 ? ".0" : "";
    char suffix[16];
    const kvs__st_tensor *t = NULL;
    for (;; l->n_arrays++) {
        (void)snprintf(suffix, sizeof suffix, "%s.%u", prefix, l->n_arrays);
        t = find_tensor(f, p->state, suffix);
        if (!t) {
            break;
        }
        if (!is_none(t) && t->n_dims > 0) {
            l->batch = t->dims[0];
            if (l->n_arrays < 2) {
                l->arrays[l->n_arrays] = t;
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        if (l->arrays[i] && l->arrays[i]->dims[0] != l->batch) {
            return leaf_bad(f, err, "arrays of different rows");
        }
    }
    return l->batch > 0 && l->batch <= MAX_COUNT ? KVS_OK : leaf_bad(f, err, "no row");
}

/* Numbers that a layout leaves out, and limits that every class has. */
static kvs_status finish_leaf(const kvs_prompt_cache *f, kvs__pc_leaf *l, kvs_err *err)
{
    bool old = f->layout == KVS_PROMPT_MLX_LM_031;
    bool plain = l->cls == KVS_PROMPT_KV || l->cls == KVS_PROMPT_CHUNKED;
    if ((old && plain) || l->cls == KVS_PROMPT_CONCATENATE) {
        l->offset = (int64_t)l->columns; /* cut to the live rows */
    }
    if (old && l->start > 0) {
        return kvs__pc_fail(
            f, f->n_leaves, err, KVS_E_UNSUPPORTED,
            "a chunked cache whose front was dropped: this layout does not tell its "
            "offset");
    }
    bool ring = l->cls == KVS_PROMPT_ROTATING || l->cls == KVS_PROMPT_ROTATING_QUANTIZED ||
                l->cls == KVS_PROMPT_BATCH_ROTATING;
    if (ring && (l->max_size == 0 || l->keep >= l->max_size)) {
        return leaf_bad(f, err, "max_size does not hold what it keeps");
    }
    if (l->n_planes == 0 && l->offset != 0) {
        return leaf_bad(f, err, "an offset, but nothing stored");
    }
    size_t rows = l->offsets ? l->batch : 1; /* of the others all rows are alike */
    for (size_t row = 0; row < rows; row++) {
        kvs__pc_run run[KVS__PC_RUNS];
        uint32_t n = 0;
        int64_t offset = 0;
        if (!kvs__pc_runs(l, row, run, &n, &offset)) {
            return kvs__pc_fail(f, f->n_leaves, err, KVS_E_FORMAT,
                                "row %zu: offset and index do not fit %zu columns", row,
                                l->columns);
        }
    }
    return KVS_OK;
}

static kvs_status read_leaf(kvs_prompt_cache *f, const place *p, const struct class_row *row,
                            kvs_err *err)
{
    int64_t v[N_NUMBERS];
    kvs__pc_leaf l;
    memset(&l, 0, sizeof l);
    l.cls = row->cls;
    l.quantized = row->quantized;
    l.entry = p->entry;
    l.member = p->member;
    l.batch = 1;
    memcpy(l.path, p->state, sizeof l.path);
    if (row->cls == KVS_PROMPT_ROTATING_QUANTIZED && f->layout == KVS_PROMPT_MLX_LM_032) {
        return kvs__pc_fail(f, f->n_leaves, err, KVS_E_UNSUPPORTED,
                            "a RotatingQuantizedKVCache of this layout lacks offset and index");
    }
    kvs_status st = read_numbers(f, p, row, v, err);
    if (st != KVS_OK) {
        return st;
    }
    l.offset = v[OFFSET];
    l.keep = v[KEEP];
    l.max_size = v[MAX_SIZE];
    l.index = v[INDEX];
    l.chunk = v[CHUNK];
    l.start = v[START];
    if (l.cls == KVS_PROMPT_ARRAYS) {
        st = read_arrays(f, p, &l, err);
    } else {
        st = read_planes(f, p, &l, v[BITS], v[GROUP], err);
    }
    if (st == KVS_OK && (l.cls == KVS_PROMPT_BATCH_KV || l.cls == KVS_PROMPT_BATCH_ROTATING)) {
        st = read_batch(f, p, &l, err);
    }
    st = st == KVS_OK ? finish_leaf(f, &l, err) : st;
    if (st == KVS_OK) {
        f->leaves[f->n_leaves++] = l;
    }
    return st;
}

/* ---- all caches */

static kvs_status grow_leaves(kvs_prompt_cache *f, kvs_err *err)
{
    if (f->n_leaves >= MAX_LEAVES) {
        return bad(f, err, "more than 65536 layers");
    }
    kvs__pc_leaf *p =
        kvs__grow(f->ctx, f->leaves, &f->cap, f->n_leaves, f->n_leaves + 1, sizeof *p);
    if (!p) {
        return kvs__nomem(err, "engine", sizeof *p);
    }
    f->leaves = p;
    return KVS_OK;
}

static kvs_status read_cache(kvs_prompt_cache *f, const place *p, kvs__str name, kvs_err *err);

/* Class name of member c of a CacheList: false past the last. */
static bool member_class(const kvs_prompt_cache *f, const place *p, uint32_t c, char name[40])
{
    char suffix[24];
    name[0] = '\0';
    if (f->layout == KVS_PROMPT_MLX_LM_031) {
        (void)snprintf(suffix, sizeof suffix, ".0.%u", c);
        const kvs__str *s = find_meta(f, p->info, suffix);
        if (s) {
            (void)snprintf(name, 40, "%.*s", (int)(s->len < 39 ? s->len : 39), s->ptr);
        }
        return s != NULL;
    }
    (void)snprintf(suffix, sizeof suffix, ".%u.1", c);
    const kvs__st_tensor *t = find_tensor(f, p->state, suffix);
    if (!t || t->dtype != KVS__ST_I32 || t->n_dims != 1 || t->n >= 40) {
        return false;
    }
    for (size_t i = 0; i < t->n; i++) {
        int32_t v = 0;
        memcpy(&v, t->data + i * sizeof v, sizeof v);
        name[i] = v > 0x20 && v < 0x7f ? (char)v : '?';
    }
    name[t->n] = '\0';
    return true;
}

static kvs_status read_list(kvs_prompt_cache *f, const place *p, kvs_err *err)
{
    char name[40];
    kvs_status st = KVS_OK;
    if (p->depth == MAX_DEPTH) {
        return leaf_bad(f, err, "CacheLists in each other, too deep");
    }
    uint32_t c = 0;
    for (; st == KVS_OK && member_class(f, p, c, name); c++) {
        place m = *p;
        bool fresh = f->layout == KVS_PROMPT_MLX_LM_032;
        int a = snprintf(m.state, sizeof m.state, fresh ? "%.60s.%u.0" : "%.60s.%u", p->state, c);
        int b = snprintf(m.info, sizeof m.info, "%.60s.1.%u", p->info, c);
        if (a <= 0 || b <= 0 || strlen(p->state) > 60 || strlen(p->info) > 60) {
            return leaf_bad(f, err, "a name that is too long");
        }
        m.member = c;
        m.depth++;
        st = read_cache(f, &m, (kvs__str){name, strlen(name)}, err);
    }
    return st == KVS_OK && c == 0 ? leaf_bad(f, err, "a CacheList without a member") : st;
}

static kvs_status read_cache(kvs_prompt_cache *f, const place *p, kvs__str name, kvs_err *err)
{
    kvs_status st = grow_leaves(f, err);
    if (st != KVS_OK) {
        return st;
    }
    if (kvs__str_eq(name, "CacheList")) {
        return read_list(f, p, err);
    }
    for (size_t i = 0; i < KVS_COUNT(classes); i++) {
        if (kvs__str_eq(name, classes[i].name)) {
            return read_leaf(f, p, &classes[i], err);
        }
    }
    return kvs__pc_fail(f, f->n_leaves, err, KVS_E_UNSUPPORTED, "class \"%s\" is not known here",
                        kvs__gguf_quote(name).text);
}

static kvs_status read_caches(kvs_prompt_cache *f, kvs_err *err)
{
    const kvs__str *mark = find_meta(f, "2.0", "");
    if (!mark) {
        return bad(f, err, "no prompt cache of mlx-lm: the metadata names no classes");
    }
    f->layout = mark->len == 0 ? KVS_PROMPT_MLX_LM_032 : KVS_PROMPT_MLX_LM_031;
    const char *key = f->layout == KVS_PROMPT_MLX_LM_032 ? "1." : "2.";
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; st == KVS_OK; i++) {
        place p = {"", "", i, UINT32_MAX, 0};
        (void)snprintf(p.state, sizeof p.state, "%u", i);
        (void)snprintf(p.info, sizeof p.info, "0.%u", i);
        const kvs__str *name = find_meta(f, key, p.state);
        if (!name) {
            f->n_entries = i;
            break;
        }
        st = read_cache(f, &p, *name, err);
    }
    if (st == KVS_OK && f->n_entries == 0) {
        st = bad(f, err, "a prompt cache without a layer");
    }
    for (uint32_t i = 1; st == KVS_OK && i < f->n_leaves; i++) {
        if (f->leaves[i].batch != f->leaves[0].batch) {
            return kvs__pc_fail(f, i, err, KVS_E_FORMAT, "%zu rows, layer 0 has %zu",
                                f->leaves[i].batch, f->leaves[0].batch);
        }
    }
    return st;
}

/* ---- the user's metadata */

static kvs__str decode(kvs__jval v, char **to)
{
    kvs__str s = kvs__json_raw(v);
    if (kvs__json_escaped(v)) {
        s.len = kvs__json_text(v, *to);
        s.ptr = *to;
        *to += s.len;
    }
    return s;
}

static kvs_status read_meta(kvs_prompt_cache *f, kvs_err *err)
{
    const char *prefix = f->layout == KVS_PROMPT_MLX_LM_032 ? "0." : "1.";
    size_t first = lower_bound(f, (kvs__str){prefix, 2});
    size_t n = 0;
    while (first + n < f->n_pairs && f->pairs[first + n].key.len >= 2 &&
           memcmp(f->pairs[first + n].key.ptr, prefix, 2) == 0) {
        const kvs__pc_pair *p = &f->pairs[first + n++];
        f->meta_bytes += kvs__json_escaped(p->jkey) ? p->key.len : 0;
        f->meta_bytes += kvs__json_escaped(p->jvalue) ? p->value.len : 0;
    }
    f->meta_text = kvs__alloc(f->ctx, f->meta_bytes);
    f->meta = kvs__calloc(f->ctx, n, sizeof *f->meta);
    f->n_meta = (uint32_t)n; /* a header has at most 100 MB */
    if (!f->meta_text || !f->meta) {
        return kvs__nomem(err, "engine", n * sizeof *f->meta);
    }
    char *to = f->meta_text;
    for (size_t i = 0; i < n; i++) {
        const kvs__pc_pair *p = &f->pairs[first + i];
        kvs__str key = decode(p->jkey, &to);
        f->meta[i].key = (kvs__str){key.ptr + 2, key.len - 2};
        f->meta[i].value = decode(p->jvalue, &to);
    }
    return KVS_OK;
}

/* ---- opening */

static kvs_status build(kvs_prompt_cache *f, kvs_err *err)
{
    kvs_status st = read_pairs(f, err);
    st = st == KVS_OK ? read_caches(f, err) : st;
    return st == KVS_OK ? read_meta(f, err) : st;
}

static kvs_status open_with(kvs_ctx *ctx, const char *what, const void *bytes, size_t n,
                            kvs_prompt_cache **out, kvs_err *err)
{
    kvs_prompt_cache *f = kvs__calloc(ctx, 1, sizeof *f);
    if (!f) {
        return kvs__nomem(err, "engine", sizeof *f);
    }
    f->ctx = ctx;
    size_t len = strlen(what);
    size_t skip = len < sizeof f->what ? 0 : len + 1 - sizeof f->what;
    memcpy(f->what, what + skip, len - skip + 1);
    kvs_status st = bytes ? kvs__safetensors_open_mem(ctx, bytes, n, what, &f->st, err)
                          : kvs__safetensors_open(ctx, what, &f->st, err);
    st = st == KVS_OK ? build(f, err) : st;
    if (st != KVS_OK) {
        kvs_prompt_cache_close(f);
        return st;
    }
    *out = f;
    return KVS_OK;
}

kvs_status kvs__prompt_cache_open_mem(kvs_ctx *ctx, const void *bytes, size_t n, const char *what,
                                      kvs_prompt_cache **out, kvs_err *err)
{
    return open_with(ctx, what, bytes, n, out, err);
}

kvs_status kvs_prompt_cache_open(kvs_ctx *ctx, const char *path, kvs_prompt_cache **out,
                                 kvs_err *err)
{
    if (!ctx || !path || !out) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "ctx, path or out is NULL");
    }
    *out = NULL;
    return open_with(ctx, path, NULL, 0, out, err);
}

void kvs_prompt_cache_close(kvs_prompt_cache *f)
{
    if (!f) {
        return;
    }
    kvs__free(f->ctx, f->meta, f->n_meta * sizeof *f->meta);
    kvs__free(f->ctx, f->meta_text, f->meta_bytes);
    kvs__free(f->ctx, f->leaves, f->cap * sizeof *f->leaves);
    kvs__free(f->ctx, f->pairs, f->n_pairs * sizeof *f->pairs);
    kvs__safetensors_close(f->st);
    kvs__free(f->ctx, f, sizeof *f);
}
