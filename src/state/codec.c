/* SPDX-License-Identifier: MIT */
/* codec.c: what a codec is (which are valid, how they are called, how many bytes they take) and
 * encoding and decoding of plain rows.
 *
 * Storage of affine codes equals MLX's bit for bit: the kernels give scale and bias in f32, the
 * narrow dtypes are rounded here with MLX's NaN. Rows need no order among themselves and groups
 * never cross a row, so all work is done on runs of groups that fit a stack buffer. Rotation is the
 * cache's business, as are centres; they are checked and named here, and ignored by encode and
 * decode. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "kern/affine.h"
#include "kern/kern.h"
#include "kvstate/codec.h"

enum {
    RUN =
        2048, /* elements worked on at a time: 8 KiB of f32, half of the least first-level cache */
    RUN_GROUPS = RUN / 32,
    MIN_DIM = 16,
    MAX_DIM = 1024
};

static const char *const dtype_names[] = {"f32", "f16", "bf16"};

static bool dtype_known(kvs_dtype t)
{
    return t == KVS_F32 || t == KVS_F16 || t == KVS_BF16;
}

static size_t dtype_bytes(kvs_dtype t)
{
    return t == KVS_F32 ? 4 : 2;
}

/* -- what is valid */

static kvs_status check_affine(const kvs_codec *c, kvs_err *err)
{
    if (c->bits != 2 && c->bits != 3 && c->bits != 4 && c->bits != 5 && c->bits != 6 &&
        c->bits != 8) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state", "bits %u is none of 2, 3, 4, 5, 6, 8",
                         (unsigned)c->bits);
    }
    if (c->group != 32 && c->group != 64 && c->group != 128) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state", "group %u is none of 32, 64, 128",
                         (unsigned)c->group);
    }
    return KVS_OK;
}

/* All but the dim. */
static kvs_status check_codec(const kvs_codec *c, kvs_err *err)
{
    if (!c) {
        (void)kvs__fail(err, KVS_E_INVAL, "state", "codec is NULL");
        return KVS_E_INVAL; /* spelt out: nothing after it may look at the codec */
    }
    if (!dtype_known(c->dtype)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "dtype %d of the codec is unknown",
                         (int)c->dtype);
    }
    if (c->rotate != 0 && c->rotate != KVS_ROTATED && c->rotate != (KVS_ROTATED | KVS_CENTERED)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "rotate %u is none of 0, 1, 3",
                         (unsigned)c->rotate);
    }
    if (c->bits != 0) {
        return check_affine(c, err);
    }
    if (c->group != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state", "a dense codec has no group, not %u",
                         (unsigned)c->group);
    }
    if (c->rotate) {
        return kvs__fail(err, KVS_E_INVAL, "state", "a dense codec cannot rotate");
    }
    return KVS_OK;
}

kvs_status kvs_codec_check(const kvs_codec *codec, uint32_t dim, kvs_err *err)
{
    kvs_status st = check_codec(codec, err);
    if (st != KVS_OK) {
        return st;
    }
    if (dim < MIN_DIM || dim > MAX_DIM || dim % 8 != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state", "dim %u is not a multiple of 8 from %d to %d",
                         (unsigned)dim, MIN_DIM, MAX_DIM);
    }
    if (codec->bits != 0 && dim % codec->group != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state", "dim %u is not a multiple of the group %u",
                         (unsigned)dim, (unsigned)codec->group);
    }
    return KVS_OK;
}

size_t kvs_codec_row_bytes(const kvs_codec *codec, uint32_t dim)
{
    if (kvs_codec_check(codec, dim, NULL) != KVS_OK) {
        return 0;
    }
    if (codec->bits == 0) {
        return dim * dtype_bytes(codec->dtype);
    }
    return (size_t)dim * codec->bits / 8 + dim / codec->group * 2 * dtype_bytes(codec->dtype);
}

size_t kvs_codec_center_bytes(const kvs_codec *codec, uint32_t dim)
{
    if (kvs_codec_check(codec, dim, NULL) != KVS_OK || !(codec->rotate & KVS_CENTERED)) {
        return 0;
    }
    return dim * dtype_bytes(codec->dtype);
}

/* -- names */

size_t kvs_codec_name(const kvs_codec *codec, char *dst, size_t n)
{
    char group[8] = "";
    char dtype[8] = "";
    int len = 0;
    if (check_codec(codec, NULL) != KVS_OK) {
        len = snprintf(dst, n, "invalid");
    } else if (codec->bits == 0) {
        len = snprintf(dst, n, "%s", dtype_names[codec->dtype]);
    } else {
        bool plain = codec->dtype == KVS_F16;
        if (!codec->rotate || !plain || codec->group != 64) {
            (void)snprintf(group, sizeof group, ":%u", (unsigned)codec->group);
        }
        if (!plain) {
            (void)snprintf(dtype, sizeof dtype, "/%s", dtype_names[codec->dtype]);
        }
        const char *kind = codec->rotate & KVS_CENTERED ? "c" : "q";
        len = snprintf(dst, n, "%s%u%s%s", codec->rotate ? kind : "affine", (unsigned)codec->bits,
                       group, dtype);
    }
    return len < 0 ? 0 : (size_t)len;
}

/* Takes `word` off the front of *at. */
static bool take(const char **at, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*at, word, n) != 0) {
        return false;
    }
    *at += n;
    return true;
}

/* Takes one to three decimal digits, the first not 0. */
static bool take_number(const char **at, uint16_t *out)
{
    uint16_t value = 0;
    int digits = 0;
    while (digits < 3 && **at >= (digits ? '0' : '1') && **at <= '9') {
        value = (uint16_t)(value * 10 + (**at - '0'));
        (*at)++;
        digits++;
    }
    *out = value;
    return digits > 0;
}

static bool take_dtype(const char **at, kvs_dtype *out)
{
    for (size_t i = 0; i < KVS_COUNT(dtype_names); i++) {
        if (take(at, dtype_names[i])) {
            *out = (kvs_dtype)i;
            return true;
        }
    }
    return false;
}

/* The grammar alone; the values are checked after. */
static bool parse_codec(const char *at, kvs_codec *c)
{
    if (take_dtype(&at, &c->dtype)) {
        return *at == '\0';
    }
    c->dtype = KVS_F16;
    c->group = 64;
    c->rotate = take(&at, "c") ? KVS_ROTATED | KVS_CENTERED : 0;
    c->rotate = c->rotate == 0 && take(&at, "q") ? KVS_ROTATED : c->rotate;
    uint16_t bits = 0;
    if ((!c->rotate && !take(&at, "affine")) || !take_number(&at, &bits) || bits > 255) {
        return false;
    }
    c->bits = (uint8_t)bits;
    if (take(&at, ":") && !take_number(&at, &c->group)) {
        return false;
    }
    if (take(&at, "/") && !take_dtype(&at, &c->dtype)) {
        return false;
    }
    return *at == '\0';
}

kvs_status kvs_codec_parse(const char *name, kvs_codec *out, kvs_err *err)
{
    if (!name || !out) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", name ? "out" : "name");
    }
    kvs_codec c = KVS_CODEC_DENSE(KVS_F32);
    if (!parse_codec(name, &c)) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "\"%.64s\" is no codec; f32, f16, bf16, affine4:64, affine4:64/bf16, "
                         "q4 and c4 are",
                         name);
    }
    kvs_status st = check_codec(&c, err);
    if (st == KVS_OK) {
        *out = c;
    }
    return st;
}

/* -- rows */

/* Of n elements that begin with element `at` of the stored ones. */
static void widen(const kvs__kern *k, float *dst, const void *src, kvs_dtype t, size_t at, size_t n)
{
    kvs__kern_widen(k, dst, (const unsigned char *)src + at * dtype_bytes(t), t, n);
}

static void narrow(const kvs__kern *k, void *dst, kvs_dtype t, size_t at, const float *src,
                   size_t n)
{
    kvs__kern_narrow(k, (unsigned char *)dst + at * dtype_bytes(t), t, src, n);
}

/* Scales or biases to dst[at ...]: as narrow, but a NaN as MLX stores it. */
static void narrow_mlx(const kvs__kern *k, void *dst, kvs_dtype t, size_t at, const float *src,
                       size_t n)
{
    narrow(k, dst, t, at, src, n);
    for (size_t i = 0; i < n; i++) {
        if (KVS_UNLIKELY(src[i] != src[i])) {
            kvs__store_mlx(dst, t, at + i, src[i]);
        }
    }
}

static void encode_affine(const kvs__kern *k, const kvs_codec *c, size_t n_groups, const void *src,
                          kvs_dtype src_dtype, uint32_t *words, void *scales, void *biases)
{
    float x[RUN];
    float scale[RUN_GROUPS];
    float bias[RUN_GROUPS];
    size_t step = RUN / c->group;
    for (size_t g = 0; g < n_groups; g += step) {
        size_t n = n_groups - g < step ? n_groups - g : step;
        const float *from = x;
        if (src_dtype == KVS_F32) {
            from = (const float *)src + g * c->group;
        } else {
            widen(k, x, src, src_dtype, g * c->group, n * c->group);
        }
        k->affine_encode(from, n, c->bits, c->group, words, scale, bias);
        words += n * c->group * c->bits / 32;
        narrow_mlx(k, scales, c->dtype, g, scale, n);
        narrow_mlx(k, biases, c->dtype, g, bias, n);
    }
}

static void convert(const kvs__kern *k, void *dst, kvs_dtype to, const void *src, kvs_dtype from,
                    size_t n)
{
    if (to == from) {
        memcpy(dst, src, n * dtype_bytes(to));
    } else if (from == KVS_F32) {
        narrow(k, dst, to, 0, src, n);
    } else if (to == KVS_F32) {
        widen(k, dst, src, from, 0, n);
    } else {
        float x[RUN];
        for (size_t i = 0; i < n; i += RUN) {
            size_t run = n - i < RUN ? n - i : RUN;
            widen(k, x, src, from, i, run);
            narrow(k, dst, to, i, x, run);
        }
    }
}

static kvs_status check_plane(const void *p, size_t align, const char *what, kvs_err *err)
{
    if (!p) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", what);
    }
    if ((uintptr_t)p % align != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "%s is not aligned to its elements of %zu bytes", what, align);
    }
    return KVS_OK;
}

/* What encode and decode ask of their arguments. `plain` are the decoded elements. */
static kvs_status check_rows(const kvs_ctx *ctx, const kvs_codec *c, uint32_t dim, size_t n,
                             const void *plain, kvs_dtype plain_dtype, const void *words,
                             const void *scales, const void *biases, kvs_err *err)
{
    kvs_status st = kvs_codec_check(c, dim, err);
    if (st != KVS_OK) {
        return st;
    }
    if (!ctx) {
        return kvs__fail(err, KVS_E_INVAL, "state", "ctx is NULL");
    }
    if (!dtype_known(plain_dtype)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "dtype %d is unknown", (int)plain_dtype);
    }
    size_t bytes = 0;
    if (!kvs__mul_size(n, dim * sizeof(float), &bytes)) {
        return kvs__fail(err, KVS_E_RANGE, "state", "%zu rows of %u are too many", n,
                         (unsigned)dim);
    }
    if (n == 0) {
        return KVS_OK;
    }
    size_t elem = dtype_bytes(c->dtype);
    st = check_plane(plain, dtype_bytes(plain_dtype), "the plain rows", err);
    if (st == KVS_OK) {
        st = check_plane(words, c->bits ? 4 : elem, "words", err);
    }
    if (st == KVS_OK && c->bits != 0) {
        st = check_plane(scales, elem, "scales", err);
    }
    if (st == KVS_OK && c->bits != 0) {
        st = check_plane(biases, elem, "biases", err);
    }
    return st;
}

kvs_status kvs_codec_encode(const kvs_ctx *ctx, const kvs_codec *codec, uint32_t dim, size_t n,
                            const void *src, kvs_dtype src_dtype, void *words, void *scales,
                            void *biases, kvs_err *err)
{
    kvs_status st = check_rows(ctx, codec, dim, n, src, src_dtype, words, scales, biases, err);
    if (st != KVS_OK || n == 0) {
        return st;
    }
    const kvs__kern *k = kvs__ctx_kern(ctx);
    if (codec->bits == 0) {
        convert(k, words, codec->dtype, src, src_dtype, n * dim);
    } else {
        encode_affine(k, codec, n * (dim / codec->group), src, src_dtype, words, scales, biases);
    }
    return KVS_OK;
}

kvs_status kvs_codec_decode(const kvs_ctx *ctx, const kvs_codec *codec, uint32_t dim, size_t n,
                            const void *words, const void *scales, const void *biases, void *dst,
                            kvs_err *err)
{
    kvs_dtype to = codec ? codec->dtype : KVS_F32;
    kvs_status st = check_rows(ctx, codec, dim, n, dst, to, words, scales, biases, err);
    if (st != KVS_OK || n == 0) {
        return st;
    }
    if (codec->bits == 0) {
        memcpy(dst, words, n * dim * dtype_bytes(to));
    } else {
        kvs__ctx_kern(ctx)->affine_decode_mlx(dst, words, scales, biases, n * (dim / codec->group),
                                              codec->bits, codec->group, to);
    }
    return KVS_OK;
}

static void decode_affine_f32(const kvs__kern *k, const kvs_codec *c, size_t n_groups,
                              const uint32_t *words, const void *scales, const void *biases,
                              float *dst)
{
    float scale[RUN_GROUPS];
    float bias[RUN_GROUPS];
    for (size_t g = 0; g < n_groups; g += RUN_GROUPS) {
        size_t n = n_groups - g < RUN_GROUPS ? n_groups - g : RUN_GROUPS;
        widen(k, scale, scales, c->dtype, g, n);
        widen(k, bias, biases, c->dtype, g, n);
        k->affine_decode(dst, words, scale, bias, n, c->bits, c->group);
        dst += n * c->group;
        words += n * c->group * c->bits / 32;
    }
}

kvs_status kvs_codec_decode_f32(const kvs_ctx *ctx, const kvs_codec *codec, uint32_t dim, size_t n,
                                const void *words, const void *scales, const void *biases,
                                float *dst, kvs_err *err)
{
    kvs_status st = check_rows(ctx, codec, dim, n, dst, KVS_F32, words, scales, biases, err);
    if (st != KVS_OK || n == 0) {
        return st;
    }
    const kvs__kern *k = kvs__ctx_kern(ctx);
    if (codec->bits == 0) {
        convert(k, dst, KVS_F32, words, codec->dtype, n * dim);
    } else {
        decode_affine_f32(k, codec, n * (dim / codec->group), words, scales, biases, dst);
    }
    return KVS_OK;
}
