/* SPDX-License-Identifier: MIT */
/* test_engine_safetensors.c: the safetensors reader on files built here: what a valid one says,
 * what each kind of broken one is told, every truncation, every byte changed. Files lie in memory
 * of exactly their size, so that a sanitizer sees reading past the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "engine/safetensors.h"
#include "support/hf_build.h"

static kvs_ctx *ctx;

static int setup(void **state)
{
    (void)state;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    o.max_bytes = 4u << 20;
    return kvs_ctx_new(&o, &ctx, NULL) == KVS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kvs_ctx_free(ctx);
    return 0;
}

static kvs_status open_exact(const void *bytes, size_t n, uint8_t **copy, kvs__safetensors **s,
                             kvs_err *err)
{
    *copy = malloc(n ? n : 1);
    assert_non_null(*copy);
    memcpy(*copy, bytes, n);
    return kvs__safetensors_open_mem(ctx, *copy, n, "f.safetensors", s, err);
}

/* A file with this header and so many bytes of data. */
static size_t with_header(const char *header, size_t data, uint8_t *out)
{
    size_t n = strlen(header);
    for (size_t i = 0; i < 8; i++) {
        out[i] = (uint8_t)(n >> (8 * i));
    }
    memcpy(out + 8, header, n);
    memset(out + 8 + n, 0x55, data);
    return 8 + n + data;
}

static void test_valid(void **state)
{
    (void)state;
    uint8_t file[1024];
    size_t n = with_header("{\"__metadata__\":{\"format\":\"mlx\"},"
                           "\"b\":{\"dtype\":\"U32\",\"shape\":[1,2,3],\"data_offsets\":[6,30]},"
                           "\"\\u0061\":{\"shape\":[3],\"dtype\":\"BF16\",\"data_offsets\":[0,6]},"
                           "\"none\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[30,30]},"
                           "\"one\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[30,31]}}   ",
                           31, file);
    uint8_t *copy = NULL;
    kvs__safetensors *s = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (open_exact(file, n, &copy, &s, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    assert_int_equal(kvs__safetensors_bytes(s), n);
    const kvs__st_tensor *a = kvs__safetensors_find(s, (kvs__str){"a", 1});
    const kvs__st_tensor *b = kvs__safetensors_find(s, (kvs__str){"b", 1});
    assert_non_null(a);
    assert_non_null(b);
    assert_ptr_equal(kvs__safetensors_at(s, 0), a);
    assert_ptr_equal(kvs__safetensors_at(s, 1), b);
    assert_null(kvs__safetensors_at(s, 4));
    assert_null(kvs__safetensors_find(s, (kvs__str){"__metadata__", 12}));
    assert_int_equal(a->dtype, KVS__ST_BF16);
    assert_int_equal(a->bytes, 6);
    assert_int_equal(b->n, 6);
    assert_int_equal(b->n_dims, 3);
    assert_int_equal(b->dims[2], 3);
    assert_ptr_equal(b->data, a->data + 6);
    assert_int_equal(kvs__safetensors_find(s, (kvs__str){"none", 4})->n, 0);
    assert_int_equal(kvs__safetensors_find(s, (kvs__str){"one", 3})->n, 1);
    assert_true(kvs__json_is(kvs__json_get(kvs__safetensors_metadata(s), "format"), "mlx"));
    kvs__safetensors_close(s);
    free(copy);
}

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"

static void test_broken(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } bad[] = {
        {"", 0, "does not begin with {"},
        {" {}", 0, "does not begin with {"},
        {"{}x", 0, "text after the value"},
        {"{} ", 3, "tensors end at byte 0 of the data, which has 3"},
        {"{" T("a", "F32", "[2]", "0", "8") "}", 7, "ends at byte 8 of 7 of data"},
        {"{" T("a", "F32", "[2]", "0", "8") "}", 9, "tensors end at byte 8"},
        {"{" T("a", "F32", "[3]", "0", "8") "}", 8, "has 8 bytes, its shape needs 12"},
        {"{" T("a", "F32", "[1]", "4", "8") "}", 8, "after a gap from byte 0"},
        {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "U8", "[4]", "4", "8") "}", 8,
         "inside another"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "U8", "[2]", "6", "8") "}", 8,
         "after a gap"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", 8,
         "f.safetensors: tensor 'a' occurs twice"},
        {"{" T("a", "F32", "[1]", "8", "4") "}", 8, "no pair of begin and end"},
        {"{" T("a", "F32", "[1]", "-4", "0") "}", 8, "no pair of begin and end"},
        {"{" T("a", "F32", "[1]", "0", "4.5") "}", 8, "no pair of begin and end"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "no pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no pair"},
        {"{" T("a", "F32", "[-1]", "0", "4") "}", 4, "a dimension that is no count"},
        {"{" T("a", "F32", "[\\\"1\\\"]", "0", "4") "}", 4, "expected a value"},
        {"{" T("a", "F32", "[\"1\"]", "0", "4") "}", 4, "a dimension that is no count"},
        {"{" T("a", "F32", "7", "0", "4") "}", 4, "shape is no array"},
        {"{" T("a", "F32", "[4294967296,4294967296,4294967296]", "0", "4") "}", 4, "more elements"},
        {"{" T("a", "F32", "[9223372036854775807]", "0", "4") "}", 4, "no whole bytes"},
        {"{" T("a", "F4", "[3]", "0", "1") "}", 1, "no whole bytes"},
        {"{" T("a", "Q9", "[1]", "0", "4") "}", 4, "unknown dtype \"Q9\""},
        {"{\"a\":{\"dtype\":5,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype is no string"},
        {"{\"a\":7}", 0, "its description is no object"},
        {"{\"\":{}}", 0, "has an empty name"},
        {"{\"\\u0007\":{}}", 0, "control characters"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "no object of strings"},
        {"{\"__metadata__\":[]}", 0, "no object of strings"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "no object of strings"},
    };
    uint8_t file[1024];
    for (size_t i = 0; i < KVS_COUNT(bad); i++) {
        size_t n = with_header(bad[i].header, bad[i].data, file);
        uint8_t *copy = NULL;
        kvs__safetensors *s = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        if (open_exact(file, n, &copy, &s, &err) != KVS_E_FORMAT || s) {
            fail_msg("accepted or another status: %s", bad[i].header);
        }
        if (!strstr(err.msg, bad[i].says) || !strstr(err.msg, "f.safetensors")) {
            fail_msg("%s: %s", bad[i].header, err.msg);
        }
        free(copy);
    }
    static const char deep[] = "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}";
    size_t n = with_header(deep, 1, file);
    kvs__safetensors *s = NULL;
    assert_int_equal(kvs__safetensors_open_mem(ctx, file, n, "f", &s, NULL), KVS_E_UNSUPPORTED);
}

static void test_length_field(void **state)
{
    (void)state;
    uint8_t file[64];
    size_t n = with_header("{}", 0, file);
    static const uint64_t lengths[] = {3, 1000, UINT64_MAX, UINT64_C(1) << 63, 0};
    for (size_t i = 0; i < KVS_COUNT(lengths); i++) {
        for (size_t k = 0; k < 8; k++) {
            file[k] = (uint8_t)(lengths[i] >> (8 * k));
        }
        kvs__safetensors *s = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        assert_int_equal(kvs__safetensors_open_mem(ctx, file, n, "f", &s, &err), KVS_E_FORMAT);
        assert_true(err.msg[0]);
    }
}

/* No prefix and no changed byte may crash, hang, or give a view outside the file. */
static void test_every_byte(void **state)
{
    (void)state;
    static hf_file f;
    hf_add(&f, "model.a", "F32", "3,5", 60);
    hf_add(&f, "model.b", "BF16", "7", 14);
    uint8_t file[512];
    size_t n = hf_finish(&f, file, sizeof file);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *copy = NULL;
        kvs__safetensors *s = NULL;
        assert_int_equal(open_exact(file, cut, &copy, &s, NULL), KVS_E_FORMAT);
        free(copy);
    }
    for (size_t at = 0; at < n; at++) {
        for (int x = 1; x < 256; x = x * 2 + 1) {
            uint8_t *copy = NULL;
            kvs__safetensors *s = NULL;
            file[at] ^= (uint8_t)x;
            if (open_exact(file, n, &copy, &s, NULL) == KVS_OK) {
                const kvs__st_tensor *t = NULL;
                volatile uint8_t sink = 0;
                for (size_t i = 0; (t = kvs__safetensors_at(s, i)); i++) {
                    sink ^= t->bytes ? (uint8_t)(t->data[0] ^ t->data[t->bytes - 1]) : 0;
                }
                (void)sink;
            }
            file[at] ^= (uint8_t)x;
            kvs__safetensors_close(s);
            free(copy);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_length_field),
        cmocka_unit_test(test_every_byte),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
