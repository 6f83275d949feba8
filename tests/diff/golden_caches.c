/* SPDX-License-Identifier: MIT */
/* golden_caches.c: kvs_cache driven by the operations that were recorded from KVCache,
 * QuantizedKVCache, RotatingKVCache and RotatingQuantizedKVCache, and compared after each of them.
 *
 * A batch of B rows is B caches. What the oracle's attention is given (`fk`, `fv`) and holds (`lk`,
 * `lv`) is rebuilt from kvs_cache_export in the oracle's own order, which for a ring is the order
 * of its buffer: `ring` below turns the oracle's index rules, so that only positions are modelled
 * and every byte comes from the library. Checksums of those bytes must be the recorded ones.
 *
 * Each trace is replayed five times: as recorded; with a larger block limit; with every append
 * cut in pieces; exported and imported before each append; with the reference kernels. Where the
 * library means to differ there is an entry in `declared`, whose counts must come out exactly;
 * nothing is skipped. */
#include <inttypes.h>

#include "golden_common.h"
#include "kvstate/mask.h"

enum { MAX_BATCH = 2, MAX_TOKENS = 2048, MAX_TRACE_BYTES = 1 << 24 };

/* ---- the oracle's buffer, as positions */

typedef struct ring {
    int64_t slot[MAX_TOKENS]; /* position held, or stale */
    int64_t cap;
    int64_t index;
    int64_t offset;
    int64_t max_size; /* 0: not a ring, positions [0, offset) in order */
    int64_t keep;
} ring;

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Drops the n oldest slots behind the first `keep`. */
static void ring_drop(ring *r, int64_t n)
{
    if (n > 0) {
        memmove(&r->slot[r->keep], &r->slot[r->keep + n],
                (size_t)(r->cap - r->keep - n) * sizeof r->slot[0]);
        r->cap -= n;
    }
}

/* Writes the positions held to dst, oldest first. */
static int64_t ring_in_order(const ring *r, int64_t *dst)
{
    if (r->max_size == 0) {
        for (int64_t i = 0; i < r->offset; i++) {
            dst[i] = i;
        }
        return r->offset;
    }
    if (r->index == r->cap || r->index >= r->offset) {
        memcpy(dst, r->slot, (size_t)r->index * sizeof *dst);
        return r->index;
    }
    int64_t n = 0;
    for (int64_t i = 0; i < r->keep; i++) {
        dst[n++] = r->slot[i];
    }
    for (int64_t i = r->index; i < r->cap; i++) {
        dst[n++] = r->slot[i];
    }
    for (int64_t i = r->keep; i < r->index; i++) {
        dst[n++] = r->slot[i];
    }
    return n;
}

static void ring_write_one(ring *r)
{
    if (r->cap == 0 || (r->offset >= r->cap && r->cap < r->max_size)) {
        r->cap += min64(256, r->max_size - r->offset);
        r->index = r->offset;
    }
    if (r->cap > r->max_size) {
        ring_drop(r, r->cap - r->max_size);
        r->index = r->max_size;
    }
    if (r->index == r->max_size) {
        r->index = r->keep;
    }
    r->slot[r->index++] = r->offset++;
}

static void ring_write_many(ring *r, int64_t n)
{
    int64_t ordered[MAX_TOKENS];
    if (r->cap > 0) {
        r->cap = ring_in_order(r, ordered);
        memcpy(r->slot, ordered, (size_t)r->cap * sizeof ordered[0]);
        ring_drop(r, r->cap - r->max_size + 1);
    }
    for (int64_t i = 0; i < n; i++) {
        r->slot[r->cap++] = r->offset++;
    }
    r->index = r->cap;
}

/* An append of n; writes what attention is then given to dst. */
static int64_t ring_update(ring *r, int64_t n, int64_t *dst)
{
    if (r->max_size == 0) {
        r->offset += n;
        return ring_in_order(r, dst);
    }
    if (n == 1) {
        ring_write_one(r);
    } else {
        ring_write_many(r, n);
    }
    int64_t cols = min64(r->offset, r->cap);
    memcpy(dst, r->slot, (size_t)cols * sizeof *dst);
    return cols;
}

/* ---- one replay */

/* Of one recorded trace: how often the library differs by design. */
typedef struct departures {
    /* Tokens can be taken back where the oracle refuses: a ring of ours keeps as many tokens beyond
     * its window as one append may bring. do_refuse proves that it does so exactly. */
    uint64_t rewinds;
    /* Sinks: mlx-lm's window counts columns of its buffer, `keep` rows among them, so within a
     * block sinks slide out of sight and older tokens into it. Here every query sees all sinks and
     * exactly the newest max_size - keep tokens; do_mask proves that on positions. */
    uint64_t masks;
    /* "None" where mlx-lm builds an array: one query of which the window hides nothing, or, with
     * sinks, hides nothing by the rule above. */
    uint64_t modes;
} departures;

/* How a trace is replayed. */
typedef struct variant {
    const char *what;
    uint32_t extra; /* block limit beyond the largest append */
    uint32_t piece; /* most tokens of one append, 0: as recorded */
    bool reload;    /* before each append: export, and import into a new cache */
    uint32_t tiers_off;
} variant;

static const variant variants[] = {
    {"as recorded", 0, 0, false, 0},
    {"larger block limit", 37, 0, false, 0},
    {"in pieces of 3", 0, 3, false, 0},
    {"exported, imported", 0, 0, true, 0},
    {"reference kernels", 0, 0, false, KVS_TIER_ALL},
};

typedef struct replay {
    char name[40];
    kvs_dtype dtype;
    uint32_t batch;
    uint32_t heads;
    uint32_t dims[2]; /* of K and V */
    kvs_codec codec;
    ring r;
    kvs_cache *cache[MAX_BATCH];
    uint64_t seed[MAX_TOKENS]; /* of the append that wrote a position */
    uint32_t at[MAX_TOKENS];   /* its place in that append */
    uint32_t of[MAX_TOKENS];   /* and how many tokens that was */
    const variant *v;
    kvs_ctx *ctx;
    ledger *sums;
    uint64_t other; /* comparisons that are no checksums */
    departures seen;
    unsigned char *bytes; /* one plane of the batch */
} replay;

static void expect(replay *p, const char *line, bool good, const char *what)
{
    p->other++;
    if (!good) {
        fprintf(stderr, "%s: %s\n  at %.*s\n", p->name, what, (int)strcspn(line, "\n"), line);
        p->sums->failed++;
    }
}

static size_t units(const replay *p, int side, int plane)
{
    uint32_t dim = p->dims[side];
    if (p->codec.bits == 0) {
        return plane == 0 ? dim : 0;
    }
    return plane == 0 ? (size_t)dim * p->codec.bits / 32 : dim / p->codec.group;
}

static size_t unit_bytes(const replay *p, int plane)
{
    return p->codec.bits > 0 && plane == 0 ? 4 : golden_size(p->codec.dtype);
}

/* One token of one head of K or V as it was appended. */
static void appended(const replay *p, int side, uint32_t row, uint32_t head, int64_t pos, void *dst)
{
    size_t dim = p->dims[side];
    size_t first = ((size_t)row * p->heads + head) * p->of[pos] + p->at[pos];
    for (size_t d = 0; d < dim; d++) {
        float x = gold_value(p->seed[pos] + (uint64_t)side, first * dim + d);
        golden_store(dst, p->dtype, d, x);
    }
}

/* Exports positions [begin, begin + n) of one plane and scatters its rows to columns from `col` of
 * p->bytes [batch][heads][cols][units]. */
static void gather(replay *p, int side, int plane, uint32_t row, int64_t begin, size_t n,
                   size_t col, size_t cols)
{
    size_t row_bytes = units(p, side, plane) * unit_bytes(p, plane);
    unsigned char *tmp = (unsigned char *)golden_alloc(p->heads * n * row_bytes);
    kvs_planes planes = KVS_PLANES_INIT;
    *(side == 0 ? &planes.k[plane] : &planes.v[plane]) = tmp;
    kvs_err err;
    golden_must(kvs_cache_export(p->cache[row], 0, begin, n, &planes, &err), &err);
    for (uint32_t h = 0; h < p->heads; h++) {
        memcpy(p->bytes + (((size_t)row * p->heads + h) * cols + col) * row_bytes,
               tmp + h * n * row_bytes, n * row_bytes);
    }
    free(tmp);
}

/* Builds one plane of the positions `pos` in p->bytes and returns its size. */
static size_t build(replay *p, int side, int plane, const int64_t *pos, size_t cols)
{
    size_t row_bytes = units(p, side, plane) * unit_bytes(p, plane);
    size_t n = 0;
    if (p->batch * p->heads * cols * row_bytes > MAX_TRACE_BYTES) {
        gold_die("plane too large", p->name);
    }
    for (uint32_t row = 0; row < p->batch; row++) {
        for (size_t c = 0; c < cols; c += n) {
            n = 1;
            while (c + n < cols && pos[c + n] == pos[c] + (int64_t)n) {
                n++;
            }
            gather(p, side, plane, row, pos[c], n, c, cols);
        }
    }
    return p->batch * p->heads * cols * row_bytes;
}

/* Compares the planes of one side with the checksums of field `key`. */
static void compare(replay *p, const char *line, const char *key, int side, const int64_t *pos,
                    int64_t cols)
{
    char text[40];
    if (!gold_field(line, key, text, sizeof text)) {
        gold_die("no field", key);
    }
    const char *c = text;
    for (int plane = 0; plane < 3 && units(p, side, plane) > 0 && *c != '-'; plane++) {
        size_t n = build(p, side, plane, pos, (size_t)cols);
        char *end = NULL;
        uint32_t want = (uint32_t)strtoul(c, &end, 16);
        uint32_t have = gold_crc(0, p->bytes, n);
        if (ledger_fails(p->sums, have == want && end == c + 8)) {
            fprintf(stderr,
                    "%s: %s plane %d of %" PRId64 " columns is %08x, recorded %08x\n  at %.*s\n",
                    p->name, key, plane, cols, have, want, (int)strcspn(line, "\n"), line);
        }
        c = *end == ',' ? end + 1 : end;
    }
    expect(p, line, *c == 0 || *c == '-', "planes that the codec does not have");
}

static void compare_state(replay *p, const char *line)
{
    int64_t pos[MAX_TOKENS];
    int64_t n = ring_in_order(&p->r, pos);
    if (p->r.max_size > 0) {
        expect(p, line, p->r.index == gold_number(line, "index"), "the index rules are wrong");
    }
    expect(p, line, n == gold_number(line, "live"), "the order rules are wrong");
    for (uint32_t b = 0; b < p->batch; b++) {
        expect(p, line, kvs_cache_length(p->cache[b], 0) == gold_number(line, "offset"), "length");
    }
    compare(p, line, "lk", 0, pos, n);
    compare(p, line, "lv", 1, pos, n);
}

/* Appends tokens [first, first + n) of an append of `of` tokens, from p->bytes. */
static void append_piece(replay *p, uint64_t seed, uint32_t first, uint32_t n, uint32_t of)
{
    void *x[2];
    for (uint32_t b = 0; b < p->batch; b++) {
        kvs_kv kv = KVS_KV_INIT;
        kv.n_tokens = n;
        kv.dtype = p->dtype;
        for (int side = 0; side < 2; side++) {
            size_t dim = p->dims[side];
            size_t size = golden_size(p->dtype);
            x[side] = golden_alloc((size_t)p->heads * of * dim * size);
            for (size_t i = 0; i < (size_t)p->heads * of * dim; i++) {
                float v = gold_value(seed + (uint64_t)side, (size_t)b * p->heads * of * dim + i);
                golden_store(x[side], p->dtype, i, v);
            }
            *(side == 0 ? &kv.k : &kv.v) = (unsigned char *)x[side] + first * dim * size;
            *(side == 0 ? &kv.k_token_stride : &kv.v_token_stride) = dim;
            *(side == 0 ? &kv.k_head_stride : &kv.v_head_stride) = of * dim;
        }
        kvs_err err;
        golden_must(kvs_cache_append(p->cache[b], 0, &kv, &err), &err);
        free(x[0]);
        free(x[1]);
    }
}

static void append(replay *p, uint64_t seed, uint32_t n, int64_t at)
{
    uint32_t piece = p->v->piece > 0 && p->v->piece < n ? p->v->piece : n;
    for (uint32_t i = 0; i < n; i++) {
        p->seed[at + i] = seed;
        p->at[at + i] = i;
        p->of[at + i] = n;
    }
    for (uint32_t i = 0; i < n; i += piece) {
        append_piece(p, seed, i, n - i < piece ? n - i : piece, n);
    }
}

/* Positions [begin, begin + n), as the oracle lays planes, out of one cache and into another. */
static void carry(const replay *p, const kvs_cache *from, kvs_cache *to, int64_t begin, uint64_t n)
{
    kvs_planes planes = KVS_PLANES_INIT;
    kvs_err err;
    for (int plane = 0; plane < 3; plane++) {
        size_t rows = p->heads * (size_t)n * unit_bytes(p, plane);
        planes.k[plane] = units(p, 0, plane) ? golden_alloc(rows * units(p, 0, plane)) : NULL;
        planes.v[plane] = units(p, 1, plane) ? golden_alloc(rows * units(p, 1, plane)) : NULL;
    }
    golden_must(kvs_cache_export(from, 0, begin, n, &planes, &err), &err);
    golden_must(kvs_cache_import(to, 0, begin, n, &planes, &err), &err);
    for (int plane = 0; plane < 3; plane++) {
        free(planes.k[plane]);
        free(planes.v[plane]);
    }
}

static kvs_cache *new_cache(const replay *p, const kvs_layer_spec *spec)
{
    kvs_cache_opts opts = KVS_CACHE_OPTS_INIT;
    opts.n_layers = 1;
    opts.layers = spec;
    kvs_cache *cache = NULL;
    kvs_err err;
    golden_must(kvs_cache_new(p->ctx, &opts, &cache, &err), &err);
    return cache;
}

/* Goes on with new caches that know no more than what the oracle holds. */
static void reload(replay *p)
{
    int64_t pos[MAX_TOKENS];
    int64_t cols = ring_in_order(&p->r, pos);
    int64_t n = 0;
    for (uint32_t b = 0; b < p->batch; b++) {
        kvs_cache *to = new_cache(p, kvs_cache_spec(p->cache[b], 0));
        for (int64_t c = 0; c < cols; c += n) {
            n = 1;
            while (c + n < cols && pos[c + n] == pos[c] + n) {
                n++;
            }
            carry(p, p->cache[b], to, pos[c], (uint64_t)n);
        }
        kvs_cache_free(p->cache[b]);
        p->cache[b] = to;
    }
}

static void do_update(replay *p, const char *line)
{
    if (p->v->reload) {
        reload(p);
    }
    int64_t n = gold_number(line, "n");
    if (p->r.offset + n > MAX_TOKENS || p->r.cap + n > MAX_TOKENS) {
        gold_die("trace too long", p->name);
    }
    append(p, (uint64_t)gold_number(line, "seed"), (uint32_t)n, p->r.offset);
    int64_t pos[MAX_TOKENS];
    int64_t cols = ring_update(&p->r, n, pos);
    expect(p, line, cols == gold_number(line, "cols"), "the fetch rules are wrong");
    compare(p, line, "fk", 0, pos, cols);
    compare(p, line, "fv", 1, pos, cols);
    compare_state(p, line);
}

static void do_trim(replay *p, const char *line)
{
    int64_t n = gold_number(line, "n");
    int64_t done = min64(n, p->r.offset);
    expect(p, line, done == gold_number(line, "done"), "tokens trimmed");
    for (uint32_t b = 0; b < p->batch; b++) {
        if (n > p->r.offset) {
            kvs_status s = kvs_cache_rewind(p->cache[b], 0, (uint64_t)n, NULL);
            expect(p, line, s == KVS_E_RANGE, "rewound more than there was");
        }
        kvs_status s = kvs_cache_can_rewind(p->cache[b], 0, (uint64_t)done);
        expect(p, line, s == KVS_OK, "cannot rewind where the oracle trims");
        s = kvs_cache_rewind(p->cache[b], 0, (uint64_t)done, NULL);
        expect(p, line, s == KVS_OK, "rewind");
    }
    p->r.offset -= done;
    p->r.index -= done;
    compare_state(p, line);
}

/* Re-appends the newest n tokens, as single appends. */
static void append_again(replay *p, int64_t n)
{
    unsigned char x[2][2 * 4 * 128];
    for (int64_t pos = p->r.offset - n; pos < p->r.offset; pos++) {
        for (uint32_t b = 0; b < p->batch; b++) {
            kvs_kv kv = KVS_KV_INIT;
            kv.n_tokens = 1;
            kv.dtype = p->dtype;
            kv.k = x[0];
            kv.v = x[1];
            for (int side = 0; side < 2; side++) {
                for (uint32_t h = 0; h < p->heads; h++) {
                    size_t at = (size_t)h * p->dims[side] * golden_size(p->dtype);
                    appended(p, side, b, h, pos, x[side] + at);
                }
            }
            kvs_err err;
            golden_must(kvs_cache_append(p->cache[b], 0, &kv, &err), &err);
        }
    }
}

/* The oracle will not trim. Where the library can, it has to do it exactly: taken back and written
 * again, the tokens that a query may see are the same bytes. */
static void do_refuse(replay *p, const char *line)
{
    int64_t n = gold_number(line, "n");
    int64_t sinks = p->r.keep;
    int64_t from = p->r.offset - (p->r.max_size - sinks);
    int64_t pos[MAX_TOKENS];
    int64_t cols = 0;
    expect(p, line, p->r.max_size > 0 && p->r.offset >= p->r.max_size, "who refuses");
    bool can = kvs_cache_can_rewind(p->cache[0], 0, (uint64_t)n) == KVS_OK;
    int64_t length = kvs_cache_length(p->cache[0], 0);
    bool promised = n <= min64(length, kvs_cache_spec(p->cache[0], 0)->max_block);
    expect(p, line, can || !promised || p->v->reload, "a rewind within max_block is promised");
    if (!can) {
        kvs_status s = kvs_cache_rewind(p->cache[0], 0, (uint64_t)n, NULL);
        expect(p, line, s == (n > length ? KVS_E_RANGE : KVS_E_STATE),
               "a rewind that can_rewind denies");
        expect(p, line, kvs_cache_length(p->cache[0], 0) == length, "refused but changed");
        return;
    }
    p->seen.rewinds++;
    for (int64_t i = 0; i < sinks; i++) {
        pos[cols++] = i;
    }
    for (int64_t i = from > sinks ? from : sinks; i < p->r.offset; i++) {
        pos[cols++] = i;
    }
    uint32_t before[2][3] = {{0}};
    for (int side = 0; side < 2; side++) {
        for (int plane = 0; plane < 3; plane++) {
            before[side][plane] = gold_crc(0, p->bytes, build(p, side, plane, pos, (size_t)cols));
        }
    }
    for (uint32_t b = 0; b < p->batch; b++) {
        expect(p, line, kvs_cache_rewind(p->cache[b], 0, (uint64_t)n, NULL) == KVS_OK, "rewind");
    }
    append_again(p, n);
    for (int side = 0; side < 2; side++) {
        for (int plane = 0; plane < 3; plane++) {
            uint32_t now = gold_crc(0, p->bytes, build(p, side, plane, pos, (size_t)cols));
            expect(p, line, now == before[side][plane], "rewound and written again: other bytes");
        }
    }
}

static void do_convert(replay *p, const char *line)
{
    kvs_codec c = KVS_CODEC_AFFINE((uint8_t)gold_number(line, "bits"),
                                   (uint16_t)gold_number(line, "group_size"), p->dtype);
    kvs_err err;
    for (uint32_t b = 0; b < p->batch; b++) {
        golden_must(kvs_cache_convert(p->cache[b], 0, &c, &c, &err), &err);
    }
    p->codec = c;
    compare_state(p, line);
}

/* ---- masks */

/* Positions of the columns of a mask for n queries that are still to be appended. */
static int64_t mask_columns(const replay *p, int64_t n, int64_t *pos)
{
    static ring next; /* large */
    next = p->r;
    if (next.max_size == 0 || n == 1) {
        return ring_update(&next, n, pos);
    }
    /* mlx-lm takes at most max_size - 1 old columns, as if the ring held no more */
    ring_write_many(&next, n);
    int64_t cols = min64(p->r.max_size - 1, p->r.offset) + n;
    int64_t sinks = min64(p->r.keep, cols - n);
    for (int64_t i = 0; i < cols; i++) {
        pos[i] = i < sinks ? next.slot[i] : next.slot[next.cap - cols + i];
    }
    return cols;
}

/* The library's rule on positions: causal, the newest `window` and the sinks. */
static bool visible(const replay *p, int64_t query, int64_t key, int64_t window)
{
    return key <= query && (window == 0 || key > query - window || key < p->r.keep);
}

/* mlx-lm's rule on columns: a window over them, sinks or not; for one query of a ring the newest
 * `window` columns, then rolled. */
static bool visible_mlx(const replay *p, int64_t n, int64_t cols, int64_t i, int64_t j,
                        int64_t window)
{
    if (p->r.max_size > 0 && n == 1) {
        int64_t turn = (p->r.index >= p->r.max_size ? 0 : p->r.index) + 1;
        return ((j - turn) % cols + cols) % cols >= cols - window;
    }
    int64_t row = cols - n + i;
    int64_t w = window > 0 ? window : p->r.max_size;
    return j <= row && (w == 0 || row < j + w);
}

static kvs_mask_desc describe(const replay *p, int64_t n, int64_t window, bool array)
{
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    d.n_queries = (uint32_t)n;
    d.offset = p->r.offset;
    d.window = window;
    d.flags = array ? KVS_MASK_ARRAY : 0;
    if (p->r.max_size > 0) {
        d.kind = n > 1 ? KVS_MASK_RING_WINDOW : KVS_MASK_RING_DECODE;
        d.sinks = p->r.keep;
        d.ring = p->r.max_size;
        d.ring_index = n > 1 ? 0 : p->r.index;
    }
    return d;
}

static void do_mask(replay *p, const char *line)
{
    int64_t n = gold_number(line, "n");
    int64_t window = gold_number(line, "window");
    bool ring_kind = p->r.max_size > 0;
    kvs_mask_desc d = describe(p, n, window, gold_number(line, "array") != 0);
    kvs_mask_shape shape = KVS_MASK_SHAPE_INIT;
    kvs_err err;
    golden_must(kvs_mask_plan(&d, &shape, &err), &err);
    unsigned char *mask = (unsigned char *)golden_alloc(shape.bytes);
    unsigned char *theirs = (unsigned char *)golden_alloc(shape.bytes);
    golden_must(kvs_mask_fill(&d, mask, shape.bytes, &err), &err);

    int64_t pos[MAX_TOKENS];
    int64_t cols = mask_columns(p, n, pos);
    expect(p, line, shape.bytes == (size_t)(n * cols), "size of the mask");
    int64_t reach = window > 0 || !ring_kind ? window : p->r.max_size - p->r.keep;
    bool right = true;
    for (int64_t at = 0; at < n * cols; at++) {
        int64_t i = at / cols;
        bool see = visible(p, p->r.offset + i, pos[at % cols], reach);
        right = right && mask[at] == (see ? 1 : 0);
        theirs[at] = visible_mlx(p, n, cols, i, at % cols, window) ? 1 : 0;
    }
    expect(p, line, right, "the mask is not that of the positions");

    char answer[40];
    char want[40];
    (void)gold_field(line, "answer", answer, sizeof answer);
    bool array = strchr(answer, 'x') != NULL;
    if (array) {
        (void)snprintf(want, sizeof want, "%" PRId64 "x%" PRId64 ":%08x", n, cols,
                       gold_crc(0, theirs, shape.bytes));
        expect(p, line, strcmp(want, answer) == 0, "the oracle's mask is not as its rule says");
    }
    for (int64_t at = 0; at < n * cols && !array; at++) {
        theirs[at] = at % cols <= cols - n + at / cols; /* "causal", or all for one query */
    }
    bool same = memcmp(mask, theirs, shape.bytes) == 0;
    expect(p, line, same || p->r.keep > 0, "the mask is not the oracle's");
    p->seen.masks += same ? 0 : 1;
    const char *mode = shape.mode == KVS_MASK_MODE_NONE     ? "none"
                       : shape.mode == KVS_MASK_MODE_CAUSAL ? "causal"
                                                            : "array";
    bool as_mode = strcmp(mode, array ? "array" : answer) == 0;
    expect(p, line, as_mode || array || !same, "an array where the oracle needs none");
    p->seen.modes += as_mode ? 0 : 1;
    free(mask);
    free(theirs);
}

/* ---- the traces */

static void begin(replay *p, const char *line, const variant *v)
{
    char text[40];
    (void)gold_field(line, "name", p->name, sizeof p->name);
    (void)gold_field(line, "dtype", text, sizeof text);
    p->dtype = golden_dtype(text);
    p->batch = (uint32_t)gold_number(line, "batch");
    p->heads = (uint32_t)gold_number(line, "heads");
    p->dims[0] = (uint32_t)gold_number(line, "k_dim");
    p->dims[1] = (uint32_t)gold_number(line, "v_dim");
    p->v = v;
    p->r.max_size = gold_number(line, "max_size");
    p->r.keep = gold_number(line, "keep");
    kvs_codec codec = {(uint8_t)gold_number(line, "bits"), 0,
                       (uint16_t)gold_number(line, "group_size"), p->dtype};
    p->codec = codec;
    kvs_layer_spec spec = KVS_LAYER_SPEC_INIT;
    spec.n_kv_heads = p->heads;
    spec.k_dim = p->dims[0];
    spec.v_dim = p->dims[1];
    spec.k = spec.v = codec;
    if (p->r.max_size > 0) {
        spec.layout = KVS_LAYOUT_RING;
        spec.window = (uint32_t)(p->r.max_size - p->r.keep);
        spec.sinks = (uint32_t)p->r.keep;
        spec.max_block = (uint32_t)gold_number(line, "largest") + v->extra;
    }
    for (uint32_t b = 0; b < p->batch; b++) {
        p->cache[b] = new_cache(p, &spec);
    }
}

static void end(replay *p)
{
    for (uint32_t b = 0; b < p->batch; b++) {
        kvs_cache_free(p->cache[b]);
    }
}

/* ---- what is declared to differ */

typedef struct declaration {
    const char *trace;
    departures count;
} declaration;

static const declaration declared[] = {
    {"ring8_0_10", {1, 0, 0}}, {"ring8_3_10", {1, 0, 0}}, {"kv_f32", {0, 0, 1}},
    {"quant_b2", {0, 0, 1}},   {"quant_g32", {0, 0, 3}},  {"ring_1_0", {7, 0, 0}},
    {"ring_2_1", {2, 5, 1}},   {"ring_7_0", {4, 0, 0}},   {"ring_8_4", {6, 4, 0}},
    {"ring_16_2", {4, 5, 0}},  {"ring_33_0", {7, 0, 0}},  {"ringq_7_0", {7, 0, 0}},
    {"ringq_8_4", {9, 5, 1}},  {"ringq_16_2", {1, 4, 0}},
};

/* A larger block limit lets more tokens be taken back, and what a new cache was not told cannot be;
 * all else is the same in every variant. */
static bool check_declared(const replay *p, const variant *v, departures *sum, size_t *used)
{
    departures want = {0, 0, 0};
    for (size_t i = 0; i < sizeof declared / sizeof declared[0]; i++) {
        if (strcmp(declared[i].trace, p->name) == 0) {
            want = declared[i].count;
            *used += 1;
        }
    }
    sum->rewinds += p->seen.rewinds;
    sum->masks += p->seen.masks;
    sum->modes += p->seen.modes;
    bool rewinds = (v->extra > 0 && p->seen.rewinds > want.rewinds) ||
                   (v->reload && p->seen.rewinds < want.rewinds) || p->seen.rewinds == want.rewinds;
    if (rewinds && p->seen.masks == want.masks && p->seen.modes == want.modes) {
        return true;
    }
    fprintf(stderr, "not as declared (%s): {\"%s\", {%llu, %llu, %llu}},\n", v->what, p->name,
            (unsigned long long)p->seen.rewinds, (unsigned long long)p->seen.masks,
            (unsigned long long)p->seen.modes);
    return false;
}

/* Replays all traces; false where something is not as recorded or declared. */
static bool replay_all(const gold_file *f, const variant *v)
{
    static replay p; /* large */
    static const char *const verbs[] = {"update", "trim", "refuse", "mask", "convert"};
    void (*const ops[])(replay *, const char *) = {do_update, do_trim, do_refuse, do_mask,
                                                   do_convert};
    uint64_t done[6] = {0};
    ledger sums = {0, 0};
    uint64_t other = 0;
    departures sum = {0, 0, 0};
    size_t used = 0;
    bool good = true;
    kvs_ctx *ctx = golden_ctx(v->tiers_off, 1);
    unsigned char *bytes = (unsigned char *)golden_alloc(MAX_TRACE_BYTES);
    memset(&p, 0, sizeof p);
    const char *line = (const char *)f->data;
    for (; strncmp(line, "end ", 4) != 0; line = strchr(line, '\n') + 1) {
        bool first = strncmp(line, "trace ", 6) == 0;
        if (first && p.ctx != NULL) {
            good = check_declared(&p, v, &sum, &used) && good;
            other += p.other;
            end(&p);
        }
        if (first) {
            memset(&p, 0, sizeof p);
            p.ctx = ctx;
            p.sums = &sums;
            p.bytes = bytes;
            begin(&p, line, v);
            done[5]++;
            continue;
        }
        size_t op = 0;
        while (op < 5 && strncmp(line, verbs[op], strlen(verbs[op])) != 0) {
            op++;
        }
        if (op == 5) {
            gold_die("no such operation", p.name);
        }
        done[op]++;
        ops[op](&p, line);
    }
    good = check_declared(&p, v, &sum, &used) && good;
    other += p.other;
    end(&p);
    free(bytes);
    kvs_ctx_free(ctx);
    for (size_t op = 0; op < 5; op++) {
        good = good && done[op] == (uint64_t)gold_number(line, verbs[op]);
    }
    good = good && done[5] == (uint64_t)gold_number(line, "trace");
    good = good && sums.compared == (uint64_t)gold_number(line, "sums");
    printf("%-18s: %llu traces, %llu checksums and %llu other comparisons, %llu failed\n", v->what,
           (unsigned long long)done[5], (unsigned long long)sums.compared,
           (unsigned long long)other, (unsigned long long)sums.failed);
    printf(
        "  by declaration: %llu rewinds that the oracle refuses, %llu masks that keep sinks, %llu "
        "arrays not needed\n",
        (unsigned long long)sum.rewinds, (unsigned long long)sum.masks,
        (unsigned long long)sum.modes);
    return good && sums.failed == 0 && used == sizeof declared / sizeof declared[0];
}

int main(void)
{
    gold_file f = gold_read(KVS_GOLDEN_DIR "/caches.txt");
    bool good = true;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        good = replay_all(&f, &variants[i]) && good;
    }
    free(f.data);
    return good ? 0 : 1;
}
