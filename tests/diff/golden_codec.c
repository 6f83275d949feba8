/* SPDX-License-Identifier: MIT */
/* golden_codec.c: the affine codec against every vector recorded from mx.quantize and
 * mx.dequantize: words, scales, biases and decoded values, bit for bit, on every tier.
 *
 * The bits of a NaN count too, on every processor: the library has those of MLX on x86-64. Beyond
 * the vectors: a source of one type encoded with scales of another must give the words of the
 * source's vectors, and decode_f32 must be the fused form of the same codes. */
#include "golden_common.h"

static const uint32_t all_bits[] = {2, 3, 4, 5, 6, 8};
static const uint32_t all_groups[] = {32, 64, 128};

typedef struct vectors {
    gold_record rows; /* of x: [rows][dim] */
    const void *x;
    const void *words;
    const void *scales;
    const void *biases;
    const void *y;
    uint32_t bits;
    uint32_t group;
    kvs_dtype dtype;
} vectors;

typedef struct outputs {
    uint32_t *words;
    void *scales;
    void *biases;
    void *y;
    void *f;
} outputs;

/* Whether a NaN may differ from the recorded one. */
typedef enum nan_rule { NAN_ANY, NAN_EXACT } nan_rule;

static size_t n_values(const vectors *v)
{
    return gold_elements(&v->rows);
}

static const void *find(const gold_file *f, const vectors *v, const char *what, size_t elements)
{
    char name[48];
    (void)snprintf(name, sizeof name, "%s/b%ug%u/%s", golden_type_name(v->dtype), v->bits, v->group,
                   what);
    gold_record r;
    const void *data = gold_find(f, name, &r);
    if (gold_elements(&r) != elements) {
        gold_die("wrong shape", name);
    }
    return data;
}

static vectors load(const gold_file *f, kvs_dtype dtype, uint32_t bits, uint32_t group)
{
    vectors v = {.bits = bits, .group = group, .dtype = dtype};
    char name[16];
    (void)snprintf(name, sizeof name, "%s/x", golden_type_name(dtype));
    v.x = gold_find(f, name, &v.rows);
    size_t n = n_values(&v);
    v.words = find(f, &v, "words", n * bits / 32);
    v.scales = find(f, &v, "scales", n / group);
    v.biases = find(f, &v, "biases", n / group);
    v.y = find(f, &v, "y", n);
    return v;
}

static bool same_bits(uint32_t a, uint32_t b, kvs_dtype t, nan_rule rule)
{
    if (a == b) {
        return true;
    }
    return rule == NAN_ANY && golden_is_nan(a, t) && golden_is_nan(b, t);
}

static void compare(ledger *l, const vectors *v, const char *what, const void *ours,
                    const void *theirs, kvs_dtype t, size_t n, nan_rule rule)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t a = golden_bits(ours, t, i);
        uint32_t b = golden_bits(theirs, t, i);
        if (ledger_fails(l, same_bits(a, b, t, rule))) {
            fprintf(stderr, "%s bits %u group %u: %s[%zu] of %zu is %x, recorded %x\n",
                    golden_type_name(v->dtype), v->bits, v->group, what, i, n, a, b);
        }
    }
}

/* Poisoned, so that an element that was not written shows. */
static outputs fresh(const vectors *v)
{
    size_t n = n_values(v);
    outputs o = {(uint32_t *)golden_alloc(n * 4), golden_alloc(n * 4), golden_alloc(n * 4),
                 golden_alloc(n * 4), golden_alloc(n * 4)};
    memset(o.words, 0xa5, n * 4);
    memset(o.scales, 0xa5, n * 4);
    memset(o.biases, 0xa5, n * 4);
    memset(o.y, 0xa5, n * 4);
    memset(o.f, 0xa5, n * 4);
    return o;
}

static void drop(const outputs *o)
{
    free(o->words);
    free(o->scales);
    free(o->biases);
    free(o->y);
    free(o->f);
}

static void encode(kvs_ctx *ctx, const vectors *v, kvs_dtype planes, const outputs *o)
{
    kvs_codec codec = KVS_CODEC_AFFINE((uint8_t)v->bits, (uint16_t)v->group, planes);
    kvs_err err;
    golden_must(kvs_codec_encode(ctx, &codec, v->rows.dims[1], v->rows.dims[0], v->x, v->dtype,
                                 o->words, o->scales, o->biases, &err),
                &err);
}

static uint32_t code_of(const void *words, uint32_t bits, size_t i)
{
    uint32_t code = 0;
    for (uint32_t b = 0; b < bits; b++) {
        size_t at = i * bits + b;
        code |= (golden_bits(words, KVS_F32, at / 32) >> (at % 32) & 1u) << b;
    }
    return code;
}

/* Decoding starts from the recorded planes, so that an encoder's fault cannot hide a decoder's. */
static void check_decode(kvs_ctx *ctx, const vectors *v, const outputs *o, ledger *l)
{
    kvs_codec codec = KVS_CODEC_AFFINE((uint8_t)v->bits, (uint16_t)v->group, v->dtype);
    size_t n = n_values(v);
    kvs_err err;
    golden_must(kvs_codec_decode(ctx, &codec, v->rows.dims[1], v->rows.dims[0], v->words, v->scales,
                                 v->biases, o->y, &err),
                &err);
    compare(l, v, "decoded", o->y, v->y, v->dtype, n, NAN_EXACT);
    golden_must(kvs_codec_decode_f32(ctx, &codec, v->rows.dims[1], v->rows.dims[0], v->words,
                                     v->scales, v->biases, (float *)o->f, &err),
                &err);
    float *expect = (float *)golden_alloc(n * sizeof *expect);
    for (size_t i = 0; i < n; i++) {
        expect[i] = fmaf((float)code_of(v->words, v->bits, i),
                         golden_load(v->scales, v->dtype, i / v->group),
                         golden_load(v->biases, v->dtype, i / v->group));
    }
    compare(l, v, "decoded in f32", o->f, expect, KVS_F32, n, NAN_ANY);
    free(expect);
}

/* Returns how many comparisons this is. */
static uint64_t check_vectors(kvs_ctx *ctx, const vectors *v, ledger *l)
{
    outputs o = fresh(v);
    size_t n = n_values(v);
    encode(ctx, v, v->dtype, &o);
    compare(l, v, "words", o.words, v->words, KVS_F32, n * v->bits / 32, NAN_EXACT);
    compare(l, v, "scales", o.scales, v->scales, v->dtype, n / v->group, NAN_EXACT);
    compare(l, v, "biases", o.biases, v->biases, v->dtype, n / v->group, NAN_EXACT);
    check_decode(ctx, v, &o, l);
    drop(&o);
    return n * v->bits / 32 + 2 * (n / v->group) + 2 * n;
}

/* ours[i] of type `planes` against theirs[i] of type v->dtype: the narrower of the two is the
 * other one rounded, unless both are halves. */
static uint64_t compare_cast(ledger *l, const vectors *v, const char *what, kvs_dtype planes,
                             const void *ours, const void *theirs)
{
    size_t n = n_values(v) / v->group;
    kvs_dtype narrow = planes == KVS_F32 ? v->dtype : planes;
    const void *wide = planes == KVS_F32 ? ours : theirs;
    if (planes != KVS_F32 && v->dtype != KVS_F32) {
        return 0;
    }
    void *cast = golden_alloc(n * 4);
    for (size_t i = 0; i < n; i++) {
        golden_store(cast, narrow, i, golden_load(wide, KVS_F32, i));
    }
    compare(l, v, what, cast, planes == KVS_F32 ? theirs : ours, narrow, n, NAN_ANY);
    free(cast);
    return n;
}

/* Scales of another type than the source: codes come before the cast, so the words stay, and the
 * f32 planes, which were not rounded, round to the others. */
static uint64_t check_mixed(kvs_ctx *ctx, const vectors *v, kvs_dtype planes, ledger *l)
{
    outputs o = fresh(v);
    size_t n = n_values(v) * v->bits / 32;
    encode(ctx, v, planes, &o);
    compare(l, v, "words, other scales", o.words, v->words, KVS_F32, n, NAN_EXACT);
    n += compare_cast(l, v, "cast scales", planes, o.scales, v->scales);
    n += compare_cast(l, v, "cast biases", planes, o.biases, v->biases);
    drop(&o);
    return n;
}

/* Dense storage of the source's type, through the codec and through a cache, keeps every bit, as
 * MLX's dense caches do; signalling NaNs among them. */
static uint64_t check_dense(kvs_ctx *ctx, const vectors *v, ledger *l)
{
    outputs o = fresh(v);
    size_t n = n_values(v);
    kvs_err err;
    kvs_layer_spec spec = KVS_LAYER_SPEC_INIT;
    spec.n_kv_heads = 1;
    spec.k_dim = spec.v_dim = v->rows.dims[1];
    spec.k.dtype = spec.v.dtype = v->dtype;
    golden_must(kvs_codec_encode(ctx, &spec.k, spec.k_dim, v->rows.dims[0], v->x, v->dtype, o.words,
                                 NULL, NULL, &err),
                &err);
    compare(l, v, "dense", o.words, v->x, v->dtype, n, NAN_EXACT);
    kvs_cache_opts opts = KVS_CACHE_OPTS_INIT;
    opts.n_layers = 1;
    opts.layers = &spec;
    kvs_cache *cache = NULL;
    golden_must(kvs_cache_new(ctx, &opts, &cache, &err), &err);
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = v->rows.dims[0];
    kv.dtype = v->dtype;
    kv.k = kv.v = v->x;
    golden_must(kvs_cache_append(cache, 0, &kv, &err), &err);
    kvs_planes planes = KVS_PLANES_INIT;
    planes.k[0] = o.y;
    planes.v[0] = o.f;
    golden_must(kvs_cache_export(cache, 0, 0, kv.n_tokens, &planes, &err), &err);
    kvs_cache_free(cache);
    compare(l, v, "dense keys", o.y, v->x, v->dtype, n, NAN_EXACT);
    compare(l, v, "dense values", o.f, v->x, v->dtype, n, NAN_EXACT);
    drop(&o);
    return 3 * n;
}

static uint64_t check_all(kvs_ctx *ctx, const gold_file *f, ledger *l)
{
    uint64_t planned = 0;
    for (int t = 0; t < 3; t++) {
        for (size_t i = 0; i < 18; i++) {
            vectors v = load(f, (kvs_dtype)t, all_bits[i / 3], all_groups[i % 3]);
            planned += check_vectors(ctx, &v, l);
            planned += check_mixed(ctx, &v, (kvs_dtype)((t + 1) % 3), l);
            planned += check_mixed(ctx, &v, (kvs_dtype)((t + 2) % 3), l);
            planned += i == 0 ? check_dense(ctx, &v, l) : 0;
        }
    }
    return planned;
}

int main(void)
{
    gold_file f = gold_read(KVS_GOLDEN_DIR "/quantize.kvg");
    uint32_t off[3];
    size_t n_off = golden_tiers_off(off);
    bool good = true;
    for (size_t i = 0; i < n_off; i++) {
        kvs_ctx *ctx = golden_ctx(off[i], 1);
        ledger l = {0, 0};
        uint64_t planned = check_all(ctx, &f, &l);
        kvs_ctx_free(ctx);
        printf("tiers off %x: %llu values compared, %llu differ\n", off[i],
               (unsigned long long)l.compared, (unsigned long long)l.failed);
        good = good && l.failed == 0 && l.compared == planned && planned > 500000;
    }
    free(f.data);
    return good ? 0 : 1;
}
