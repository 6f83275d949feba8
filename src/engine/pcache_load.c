/* SPDX-License-Identifier: MIT */
/* pcache_load.c: from a prompt-cache file of mlx-lm into an empty cache (interchange.h).
 *
 * All layers are checked before the first byte moves; then each is imported plane by plane through
 * kvs_cache_import, in pieces of bounded size. Codes are never decoded. A failure on the way (memory,
 * a pool's limit) empties the cache again.
 *
 * A latent layer keeps one row a token: mlx-lm has its first v_dim elements as "keys" and the rest,
 * the rotary part, as "values"; groups of affine codes never reach over that border. */
#include <stdio.h>
#include <string.h>

#include "engine/pcache.h"

#define PIECE 256u /* tokens imported at once */

typedef struct job {
    const kvs_prompt_cache *f;
    size_t row;
    kvs_cache *cache;
    uint32_t leaf;
    const kvs__pc_leaf *l;
    uint32_t layer;
    const kvs_layer_spec *spec;
    kvs__pc_run run[KVS__PC_RUNS];
    uint32_t n_runs;
    int64_t offset;
} job;

/* ---- checks */

#define FAIL(j, err, status, ...) kvs__pc_fail((j)->f, (j)->leaf, err, status, __VA_ARGS__)

static bool is_dense_phase(const job *j)
{
    return j->spec->dense_until > 0 && j->offset <= (int64_t)j->spec->dense_until;
}

static kvs_status check_geometry(const job *j, kvs_err *err)
{
    const kvs_layer_spec *s = j->spec;
    bool latent = s->kind == KVS_LAYER_LATENT;
    uint32_t heads = latent ? 1 : s->n_kv_heads;
    uint32_t k = latent ? s->v_dim : s->k_dim;
    uint32_t v = latent ? s->k_dim - s->v_dim : s->v_dim;
    if (j->l->heads != heads || j->l->dim[0] != k || j->l->dim[1] != v) {
        return FAIL(j, err, KVS_E_UNSUPPORTED,
                    "%zu heads of %u/%u elements in the file, the model has %u of %u/%u",
                    j->l->heads, j->l->dim[0], j->l->dim[1], heads, k, v);
    }
    return KVS_OK;
}

static kvs_status check_codec(const job *j, int side, kvs_err *err)
{
    const kvs_layer_spec *s = j->spec;
    kvs_codec dense = KVS_CODEC_DENSE(s->dense_dtype);
    kvs_codec want = side == 0 || s->kind == KVS_LAYER_LATENT ? s->k : s->v;
    const kvs_codec *has = &j->l->codec[side];
    const char *what = side == 0 ? "keys" : "values";
    char a[48];
    char b[48];
    want = is_dense_phase(j) ? dense : want;
    (void)kvs_codec_name(has, a, sizeof a);
    (void)kvs_codec_name(&want, b, sizeof b);
    if (want.rotate) {
        return FAIL(j, err, KVS_E_UNSUPPORTED,
                    "%s are %s in the file, the plan keeps %s: rotated codes can't be exchanged, "
                    "affine ones can",
                    what, a, b);
    }
    if (want.bits != has->bits || want.group != has->group || want.dtype != has->dtype) {
        return FAIL(j, err, KVS_E_UNSUPPORTED, "%s are %s in the file, the plan keeps %s%s", what,
                    a, b, is_dense_phase(j) ? " before its start" : "");
    }
    return KVS_OK;
}

static bool is_ring(const kvs__pc_leaf *l)
{
    return l->cls == KVS_PROMPT_ROTATING || l->cls == KVS_PROMPT_ROTATING_QUANTIZED ||
           l->cls == KVS_PROMPT_BATCH_ROTATING;
}

/* Windows must be the same, unless neither has dropped or hidden a token yet. A file without a
 * window is fine for a layer with one: it has all that the layer would keep. */
static kvs_status check_window(const job *j, kvs_err *err)
{
    const kvs_layer_spec *s = j->spec;
    int64_t mine = s->window ? (int64_t)s->window : INT64_MAX;
    int64_t theirs = is_ring(j->l) ? j->l->max_size - j->l->keep : INT64_MAX;
    bool same = theirs == INT64_MAX || (mine == theirs && (int64_t)s->sinks == j->l->keep);
    if (!same && (j->offset > mine || j->offset > theirs)) {
        return FAIL(j, err, KVS_E_UNSUPPORTED,
                    "a window of %lld and %lld sinks in the file, %u and %u in the plan (0: none)",
                    (long long)theirs, (long long)j->l->keep, s->window, s->sinks);
    }
    return KVS_OK;
}

/* Are positions [begin, end) in the file? */
static bool has_range(const job *j, int64_t begin, int64_t end)
{
    for (uint32_t i = 0; i < j->n_runs && begin < end; i++) {
        const kvs__pc_run *r = &j->run[i];
        if (r->pos <= begin && begin < r->pos + (int64_t)r->n) {
            begin = r->pos + (int64_t)r->n;
        }
    }
    return begin >= end;
}

/* All that a later query may see, and what the layout can't do without. */
static kvs_status check_tokens(const job *j, kvs_err *err)
{
    const kvs_layer_spec *s = j->spec;
    if (s->dense_until > 0 && !is_dense_phase(j) && s->window > 0 && s->layout != KVS_LAYOUT_GROW &&
        j->offset > (int64_t)s->window) {
        return FAIL(j, err, KVS_E_UNSUPPORTED,
                    "%lld tokens past the start of quantisation into a window of %u",
                    (long long)j->offset, s->window);
    }
    int64_t sinks = (int64_t)s->sinks < j->offset ? (int64_t)s->sinks : j->offset;
    int64_t need = s->window ? j->offset - (int64_t)s->window + 1 : 0;
    bool whole = has_range(j, 0, j->offset);
    if (whole) {
        return KVS_OK;
    }
    need = need > sinks ? need : sinks;
    if (s->window == 0 || !has_range(j, 0, sinks) || !has_range(j, need, j->offset)) {
        return FAIL(j, err, KVS_E_RANGE, "the file lacks some of the %lld tokens that are needed",
                    (long long)j->offset);
    }
    if (s->layout == KVS_LAYOUT_GROW || s->dense_until > 0) {
        return FAIL(
            j, err, KVS_E_UNSUPPORTED,
            "the file dropped tokens before its window, and this plan keeps all%s; a smaller "
            "block, or kv_block, makes the window a ring",
            s->dense_until > 0 ? " until its start" : "");
    }
    return KVS_OK;
}

static kvs_status check_layer(job *j, kvs_err *err)
{
    const kvs__pc_leaf *l = j->l;
    if (l->cls == KVS_PROMPT_ARRAYS || j->spec->kind == KVS_LAYER_RECURRENT) {
        return FAIL(j, err, KVS_E_UNSUPPORTED, "%s, the model keeps %s",
                    l->cls == KVS_PROMPT_ARRAYS ? "recurrent state in the file"
                                                : "keys and values in the file",
                    j->spec->kind == KVS_LAYER_RECURRENT ? "recurrent state" : "keys and values");
    }
    if (!kvs__pc_runs(l, j->row, j->run, &j->n_runs, &j->offset)) {
        return FAIL(j, err, KVS_E_FORMAT, "offset and index contradict each other");
    }
    if (j->offset == 0) {
        return KVS_OK;
    }
    kvs_status st = check_geometry(j, err);
    st = st == KVS_OK ? check_codec(j, 0, err) : st;
    st = st == KVS_OK ? check_codec(j, 1, err) : st;
    st = st == KVS_OK ? check_window(j, err) : st;
    return st == KVS_OK ? check_tokens(j, err) : st;
}

/* ---- moving bytes */

/* Tokens [col, col + n) of one plane to dst [heads][n][row_bytes], at byte `at` of each row. */
static void gather(const job *j, const kvs__st_tensor *t, size_t col, size_t n, unsigned char *dst,
                   size_t row_bytes, size_t at)
{
    size_t heads = t->dims[1];
    size_t columns = t->dims[2];
    size_t bytes = t->dims[3] * (kvs__st_dtype_bits(t->dtype) / 8);
    for (size_t h = 0; h < heads; h++) {
        const uint8_t *from = t->data + ((j->row * heads + h) * columns + col) * bytes;
        unsigned char *to = dst + h * n * row_bytes + at;
        if (bytes == row_bytes) {
            memcpy(to, from, n * bytes);
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            memcpy(to + i * row_bytes, from + i * bytes, bytes);
        }
    }
}

static size_t row_bytes(const kvs__st_tensor *t)
{
    return t->dims[3] * (kvs__st_dtype_bits(t->dtype) / 8);
}

/* Positions [pos, pos + n), which lie in columns from col on; `buf` has room for all planes. */
static kvs_status import_piece(const job *j, int64_t pos, size_t col, size_t n, unsigned char *buf,
                               kvs_err *err)
{
    bool latent = j->spec->kind == KVS_LAYER_LATENT;
    kvs_planes p = KVS_PLANES_INIT;
    for (uint32_t i = 0; i < j->l->n_planes; i++) {
        const kvs__st_tensor *k = j->l->plane[0][i];
        const kvs__st_tensor *v = j->l->plane[1][i];
        size_t kb = row_bytes(k);
        size_t vb = row_bytes(v);
        size_t width = latent ? kb + vb : kb;
        p.k[i] = buf;
        gather(j, k, col, n, buf, width, 0);
        if (latent) {
            gather(j, v, col, n, buf, width, kb);
        }
        buf += (j->l->heads * n * width + 15) / 16 * 16;
        if (!latent) {
            p.v[i] = buf;
            gather(j, v, col, n, buf, vb, 0);
            buf += (j->l->heads * n * vb + 15) / 16 * 16;
        }
    }
    return kvs_cache_import(j->cache, j->layer, pos, n, &p, err);
}

static bool piece_bytes(const job *j, size_t n, size_t *out)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < j->l->n_planes; i++) {
        size_t row = row_bytes(j->l->plane[0][i]) + row_bytes(j->l->plane[1][i]);
        if (!kvs__mul_size(row, j->l->heads, &row) || !kvs__mul_size(row, n, &row) ||
            !kvs__add_size(row, sum + 32, &sum)) {
            return false;
        }
    }
    *out = sum;
    return true;
}

/* Tokens of one import: a window takes no more than its length at once, and what crosses the start
 * of quantisation must come in one piece. */
static size_t piece_tokens(const job *j)
{
    const kvs_layer_spec *s = j->spec;
    if (s->dense_until > 0 && !is_dense_phase(j)) {
        return (size_t)j->offset;
    }
    return s->window > 0 && s->window < PIECE ? s->window : PIECE;
}

/* One run, without what the layer would have dropped already. */
static kvs_status import_run(const job *j, const kvs__pc_run *r, size_t most, unsigned char *buf,
                             kvs_err *err)
{
    kvs_status st = KVS_OK;
    for (size_t done = 0; st == KVS_OK && done < r->n;) {
        size_t n = r->n - done < most ? r->n - done : most;
        st = import_piece(j, r->pos + (int64_t)done, r->col + done, n, buf, err);
        done += n;
    }
    return st;
}

/* Sinks first: an import past a gap needs them. */
static kvs_status import_layer(const job *j, kvs_err *err)
{
    size_t most = piece_tokens(j);
    size_t bytes = 0;
    if (j->offset == 0) {
        return KVS_OK;
    }
    if (!piece_bytes(j, most, &bytes)) {
        return FAIL(j, err, KVS_E_RANGE, "%zu tokens overflow", most);
    }
    unsigned char *buf = kvs__alloc(j->f->ctx, bytes);
    if (!buf) {
        return kvs__nomem(err, "engine", bytes);
    }
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; st == KVS_OK && i < j->n_runs; i++) {
        st = import_run(j, &j->run[i], most, buf, err);
    }
    kvs__free(j->f->ctx, buf, bytes);
    return st;
}

/* ---- all layers */

static bool keeps(const kvs_layer_spec *s)
{
    return s->kind != KVS_LAYER_BORROW;
}

typedef kvs_status (*layer_fn)(job *j, kvs_err *err);

static kvs_status do_import(job *j, kvs_err *err)
{
    kvs_status st = check_layer(j, err); /* finds the runs again */
    return st == KVS_OK ? import_layer(j, err) : st;
}

static kvs_status each_layer(const kvs_prompt_cache *f, size_t row, kvs_cache *cache, layer_fn fn,
                             kvs_err *err)
{
    uint32_t leaf = 0;
    uint32_t n = kvs_cache_n_layers(cache);
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; st == KVS_OK && i < n; i++) {
        const kvs_layer_spec *s = kvs_cache_spec(cache, i);
        if (!keeps(s)) {
            continue;
        }
        if (leaf < f->n_leaves) {
            job j = {.f = f,
                     .row = row,
                     .cache = cache,
                     .leaf = leaf,
                     .l = &f->leaves[leaf],
                     .layer = i,
                     .spec = s};
            st = fn(&j, err);
        }
        leaf++;
    }
    if (st == KVS_OK && leaf != f->n_leaves) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "%s: %u layers in the file, the model keeps %u", f->what, f->n_leaves,
                         leaf);
    }
    return st;
}

kvs_status kvs_prompt_cache_load(const kvs_prompt_cache *f, uint32_t row, kvs_cache *cache,
                                 kvs_err *err)
{
    if (!f || !cache) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "file or cache is NULL");
    }
    if (row >= f->leaves[0].batch) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "%s: row %u of %zu", f->what, row,
                         f->leaves[0].batch);
    }
    for (uint32_t i = 0; i < kvs_cache_n_layers(cache); i++) {
        if (kvs_cache_length(cache, i) != 0) {
            return kvs__fail(err, KVS_E_STATE, "engine", "layer %u of the cache is not empty", i);
        }
    }
    kvs_status st = each_layer(f, row, cache, check_layer, err);
    if (st != KVS_OK) {
        return st;
    }
    st = each_layer(f, row, cache, do_import, err);
    if (st != KVS_OK && kvs_cache_clear(cache, NULL) != KVS_OK) {
        return kvs__fail(err, KVS_E_BROKEN, "engine", "%s: a cache that can't be emptied again",
                         f->what);
    }
    return st;
}
