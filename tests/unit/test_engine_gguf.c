/* SPDX-License-Identifier: MIT */
/* test_engine_gguf.c: the GGUF reader on small files built here: what a valid file says, what each
 * kind of broken file is told, every truncation, every byte changed, every allocation failing.
 * Files lie before an unreadable page, so that reading past the end is a crash. */
#define _DEFAULT_SOURCE 1 /* MAP_ANONYMOUS */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "engine/gguf.h"
#include "support/fail_alloc.h"
#include "support/gguf_build.h"
#include "support/gguf_walk.h"

#define FENCE_BYTES 65536u
#define PAGE_MAX    65536u

static kvs_ctx *ctx;
static uint8_t *fence; /* the first byte that cannot be read */
static fail_alloc heap = FAIL_ALLOC_INIT;

static int setup(void **state)
{
    (void)state;
    uint8_t *p = mmap(NULL, FENCE_BYTES + PAGE_MAX, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + FENCE_BYTES, PAGE_MAX, PROT_NONE) != 0) {
        return -1;
    }
    fence = p + FENCE_BYTES;
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.alloc = fail_alloc_take;
    opts.free = fail_alloc_give;
    opts.alloc_user = &heap;
    return kvs_ctx_new(&opts, &ctx, NULL) == KVS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kvs_ctx_free(ctx);
    return munmap(fence - FENCE_BYTES, FENCE_BYTES + PAGE_MAX);
}

static size_t live(void)
{
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    assert_int_equal(kvs_ctx_get_stats(ctx, &s), KVS_OK);
    return s.live_bytes;
}

/* Opens n bytes that end at the fence. A failure must say something and leave nothing behind. */
static kvs_status open_fenced(const uint8_t *bytes, size_t n, kvs__gguf **out, kvs_err *err)
{
    assert_true(n <= FENCE_BYTES);
    memcpy(fence - n, bytes, n);
    size_t before = live();
    memset(err, 0, sizeof *err);
    *out = NULL;
    kvs_status st = kvs__gguf_open_mem(ctx, fence - n, n, out, err);
    if (st != KVS_OK) {
        assert_null(*out);
        assert_int_equal(err->status, st);
        assert_string_equal(err->room, "engine");
        assert_true(err->msg[0] != 0);
        assert_int_equal(live(), before);
    }
    return st;
}

static kvs__gguf *open_ok(const gb *b)
{
    kvs__gguf *g = NULL;
    kvs_err err;
    kvs_status st = open_fenced(b->p, b->n, &g, &err);
    if (st != KVS_OK) {
        fail_msg("%s: %s", kvs_status_name(st), err.msg);
    }
    return g;
}

/* -- a valid file */

static void test_scalars(void **state)
{
    (void)state;
    gb b;
    gb_init(&b, 3);
    gb_kv_int(&b, "u8", KVS__GGUF_U8, 200, 1);
    gb_kv_int(&b, "i8", KVS__GGUF_I8, 200, 1);
    gb_kv_int(&b, "i32", KVS__GGUF_I32, 0xfffffffeu, 4);
    gb_kv_int(&b, "u64", KVS__GGUF_U64, UINT64_MAX, 8);
    gb_kv_int(&b, "i64", KVS__GGUF_I64, (uint64_t)1 << 63, 8);
    gb_kv_f32(&b, "f32", 0.25f);
    gb_kv_f64(&b, "f64", 1e300);
    gb_kv_bool(&b, "yes", 1);
    gb_kv_bool(&b, "no", 0);
    gb_kv_str(&b, "str", "text");
    kvs__gguf *g = open_ok(&b);
    uint32_t u32 = 7;
    uint64_t u64 = 0;
    int64_t i64 = 0;
    float f = 0;
    bool yes = false;
    bool no = true;
    kvs__str s = {NULL, 0};
    assert_int_equal(kvs__gguf_get_u32(g, "u8", &u32, NULL), KVS_OK);
    assert_int_equal(u32, 200);
    assert_int_equal(kvs__gguf_get_i64(g, "i8", &i64, NULL), KVS_OK);
    assert_int_equal(i64, -56);
    assert_int_equal(kvs__gguf_get_i64(g, "i32", &i64, NULL), KVS_OK);
    assert_int_equal(i64, -2);
    assert_int_equal(kvs__gguf_get_u64(g, "u64", &u64, NULL), KVS_OK);
    assert_true(u64 == UINT64_MAX);
    assert_int_equal(kvs__gguf_get_i64(g, "i64", &i64, NULL), KVS_OK);
    assert_true(i64 == INT64_MIN);
    assert_int_equal(kvs__gguf_get_f32(g, "f32", &f, NULL), KVS_OK);
    assert_true(f == 0.25f);
    assert_int_equal(kvs__gguf_get_f32(g, "f64", &f, NULL), KVS_OK);
    assert_true(f > 3.4e38f);
    assert_int_equal(kvs__gguf_get_bool(g, "yes", &yes, NULL), KVS_OK);
    assert_int_equal(kvs__gguf_get_bool(g, "no", &no, NULL), KVS_OK);
    assert_true(yes && !no);
    assert_int_equal(kvs__gguf_get_str(g, "str", &s, NULL), KVS_OK);
    assert_true(kvs__str_eq(s, "text") && !kvs__str_eq(s, "tex") && !kvs__str_eq(s, "texts"));
    kvs__gguf_close(g);
    gb_free(&b);
}

static void expect(kvs_status got, kvs_status want, const kvs_err *err, const char *text)
{
    assert_int_equal(got, want);
    if (!strstr(err->msg, text)) {
        fail_msg("message '%s' lacks '%s'", err->msg, text);
    }
}

static void test_getters_refuse(void **state)
{
    (void)state;
    gb b;
    gb_init(&b, 3);
    gb_kv_int(&b, "big", KVS__GGUF_U64, UINT64_MAX, 8);
    gb_kv_int(&b, "neg", KVS__GGUF_I8, 0xff, 1);
    gb_kv_str(&b, "str", "text");
    gb_kv_array(&b, "arr", KVS__GGUF_I32, 0);
    kvs__gguf *g = open_ok(&b);
    uint32_t u32 = 7;
    int64_t i64 = 7;
    float f = 7;
    bool flag = true;
    kvs__str s = {"kept", 4};
    kvs__gguf_array a = {KVS__GGUF_U8, 7, NULL, 0, NULL};
    kvs_err e = {0};
    assert_int_equal(kvs__gguf_get_u32(g, "absent", &u32, &e), KVS_NO);
    assert_int_equal(kvs__gguf_get_i64(g, "", &i64, &e), KVS_NO);
    assert_int_equal(kvs__gguf_get_f32(g, "strs", &f, &e), KVS_NO);
    assert_int_equal(kvs__gguf_get_bool(g, "st", &flag, &e), KVS_NO);
    assert_int_equal(kvs__gguf_get_str(g, "absent", &s, &e), KVS_NO);
    assert_int_equal(kvs__gguf_get_array(g, "absent", KVS__GGUF_STR, &a, &e), KVS_NO);
    assert_int_equal(e.msg[0], 0);
    expect(kvs__gguf_get_u32(g, "big", &u32, &e), KVS_E_RANGE, &e,
           "key 'big' is 18446744073709551615, too large for u32");
    expect(kvs__gguf_get_i64(g, "big", &i64, &e), KVS_E_RANGE, &e, "too large for i64");
    expect(kvs__gguf_get_u32(g, "neg", &u32, &e), KVS_E_RANGE, &e, "'neg' is -1, negative for u32");
    expect(kvs__gguf_get_u32(g, "str", &u32, &e), KVS_E_FORMAT, &e, "of type string, expected u32");
    expect(kvs__gguf_get_i64(g, "str", &i64, &e), KVS_E_FORMAT, &e, "string, expected i64");
    expect(kvs__gguf_get_f32(g, "big", &f, &e), KVS_E_FORMAT, &e, "of type u64, expected f32");
    expect(kvs__gguf_get_bool(g, "neg", &flag, &e), KVS_E_FORMAT, &e, "i8, expected bool");
    expect(kvs__gguf_get_str(g, "arr", &s, &e), KVS_E_FORMAT, &e,
           "of type array of i32, expected string");
    expect(kvs__gguf_get_array(g, "arr", KVS__GGUF_STR, &a, &e), KVS_E_FORMAT, &e,
           "of type array of i32, expected array of string");
    expect(kvs__gguf_get_array(g, "str", KVS__GGUF_F32, &a, &e), KVS_E_FORMAT, &e,
           "of type string, expected array of f32");
    assert_true(u32 == 7 && i64 == 7 && f == 7.0f && flag && s.len == 4 && a.n == 7);
    kvs__gguf_close(g);
    gb_free(&b);
}

static void test_arrays(void **state)
{
    (void)state;
    gb b;
    gb_init(&b, 2);
    gb_kv_array(&b, "ints", KVS__GGUF_I16, 2);
    gb_le(&b, 0xffff, 2);
    gb_le(&b, 5, 2);
    gb_kv_array(&b, "flags", KVS__GGUF_BOOL, 2);
    gb_le(&b, 0x0001, 2);
    gb_kv_array(&b, "bytes", KVS__GGUF_U8, 1);
    gb_le(&b, 200, 1);
    gb_kv_array(&b, "reals", KVS__GGUF_F32, 1);
    gb_le(&b, 0xc0000000u, 4);
    gb_kv_array(&b, "strs", KVS__GGUF_STR, 100);
    for (int i = 0; i < 100; i++) {
        char s[128];
        memset(s, 'x', sizeof s);
        s[i] = 0;
        gb_str(&b, s);
    }
    kvs__gguf *g = open_ok(&b);
    kvs__gguf_array a;
    assert_int_equal(kvs__gguf_get_array(g, "ints", KVS__GGUF_I16, &a, NULL), KVS_OK);
    assert_true(a.n == 2 && kvs__gguf_array_int(&a, 0) == -1 && kvs__gguf_array_int(&a, 1) == 5);
    assert_int_equal(kvs__gguf_get_array(g, "flags", KVS__GGUF_BOOL, &a, NULL), KVS_OK);
    assert_true(kvs__gguf_array_int(&a, 0) == 1 && kvs__gguf_array_int(&a, 1) == 0);
    assert_int_equal(kvs__gguf_get_array(g, "bytes", KVS__GGUF_U8, &a, NULL), KVS_OK);
    assert_int_equal(kvs__gguf_array_int(&a, 0), 200);
    assert_int_equal(kvs__gguf_get_array(g, "reals", KVS__GGUF_F32, &a, NULL), KVS_OK);
    assert_true(kvs__gguf_array_f32(&a, 0) == -2.0f);
    assert_int_equal(kvs__gguf_get_array(g, "strs", KVS__GGUF_STR, &a, NULL), KVS_OK);
    assert_int_equal(a.n, 100);
    size_t at = 0;
    kvs__str s = {NULL, 0};
    for (size_t i = 0; i < 100; i++) {
        assert_int_equal(kvs__gguf_array_str(&a, 99 - i).len, 99 - i);
        assert_true(kvs__gguf_array_next(&a, &at, &s));
        assert_int_equal(s.len, i);
    }
    assert_false(kvs__gguf_array_next(&a, &at, &s));
    kvs__gguf_close(g);
    gb_free(&b);
}

static void test_tensors(void **state)
{
    (void)state;
    gb b;
    gb_sample(&b, 3);
    kvs__gguf *g = open_ok(&b);
    kvs__gguf_info info = kvs__gguf_get_info(g);
    assert_int_equal(info.version, 3);
    assert_int_equal(info.alignment, 16);
    assert_int_equal(info.n_tensors, 4);
    assert_int_equal(info.file_bytes, b.n);
    assert_int_equal(info.data_offset, b.n - 352);
    const kvs__gguf_tensor *t = kvs__gguf_tensor_find(g, "blk.0.w");
    assert_ptr_equal(t, kvs__gguf_tensor_at(g, 1));
    assert_int_equal(t->type, KVS__W_Q4_1);
    assert_true(t->n_dims == 2 && t->ne[0] == 32 && t->ne[1] == 2 && t->ne[2] == 1);
    assert_true(t->row_bytes == 20 && t->bytes == 40 && t->n_rows == 2 && t->offset == 0);
    assert_ptr_equal(t->data, fence - 352);
    t = kvs__gguf_tensor_find(g, "half");
    assert_true(t->row_bytes == 64 && (const uint8_t *)t->data + 64 == fence);
    assert_null(kvs__gguf_tensor_find(g, "blk.0"));
    assert_null(kvs__gguf_tensor_find(g, ""));
    assert_null(kvs__gguf_kv_find(g, "norm"));
    kvs__gguf_close(g);
    gb_free(&b);
}

static void test_nothing_inside(void **state)
{
    (void)state;
    gb b;
    gb_init(&b, 2);
    kvs__gguf *g = open_ok(&b);
    assert_null(kvs__gguf_kv_find(g, "a"));
    assert_null(kvs__gguf_tensor_find(g, "a"));
    assert_int_equal(kvs__gguf_get_info(g).data_offset, 24);
    kvs__gguf_close(g);
    kvs__gguf_close(NULL);
    gb_free(&b);
}

/* Enough names that the tables grow several times; found by name, none lost. */
static void test_many_names(void **state)
{
    (void)state;
    gb b;
    gb_init(&b, 3);
    char name[32];
    const uint64_t ne[1] = {2};
    for (unsigned i = 0; i < 500; i++) {
        (void)snprintf(name, sizeof name, "key.%u", i);
        gb_kv_u32(&b, name, i);
    }
    for (unsigned i = 0; i < 300; i++) { /* stored last to first */
        (void)snprintf(name, sizeof name, "blk.%u.weight", i);
        gb_tensor(&b, name, 1, ne, KVS__W_F32, 32 * (299 - (uint64_t)i));
    }
    gb_pad(&b, 32);
    gb_fill(&b, 300 * 32);
    kvs__gguf *g = open_ok(&b);
    for (unsigned i = 0; i < 500; i++) {
        (void)snprintf(name, sizeof name, "key.%u", i);
        assert_ptr_equal(kvs__gguf_kv_find(g, name), kvs__gguf_kv_at(g, i));
    }
    for (unsigned i = 0; i < 300; i++) {
        (void)snprintf(name, sizeof name, "blk.%u.weight", i);
        const kvs__gguf_tensor *t = kvs__gguf_tensor_find(g, name);
        assert_ptr_equal(t, kvs__gguf_tensor_at(g, i));
        assert_int_equal(t->offset, 32 * (299 - i));
    }
    kvs__gguf_close(g);
    gb_free(&b);
}

/* However full the table, a search for what is not there ends. */
static void test_absent_names(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 70; n++) {
        gb b;
        gb_init(&b, 3);
        for (unsigned i = 0; i < n; i++) {
            char name[32];
            (void)snprintf(name, sizeof name, "k%u", i);
            gb_kv_u32(&b, name, i);
        }
        kvs__gguf *g = open_ok(&b);
        assert_null(kvs__gguf_kv_find(g, "absent"));
        assert_null(kvs__gguf_kv_find(g, "k"));
        kvs__gguf_close(g);
        gb_free(&b);
    }
}

/* -- broken files, one defect each */

static void refuse(gb *b, kvs_status want, const char *text)
{
    kvs__gguf *g = NULL;
    kvs_err err;
    kvs_status st = open_fenced(b->p, b->n, &g, &err);
    expect(st, want, &err, text);
    gb_free(b);
}

static void test_bad_header(void **state)
{
    (void)state;
    gb b = {NULL, 0, 0};
    gb_raw(&b, "GGU", 3);
    refuse(&b, KVS_E_FORMAT, "not a GGUF file: it has 3 bytes");
    gb_raw(&b, "GGML\1\0\0\0 and so on, long enough", 32);
    refuse(&b, KVS_E_FORMAT, "begins with bytes 47 47 4d 4c");
    gb_init(&b, 3);
    b.n = 23;
    refuse(&b, KVS_E_FORMAT, "ends inside the header (23 of 24");
    gb_init(&b, 0x03000000u);
    refuse(&b, KVS_E_UNSUPPORTED, "big-endian (version field 0x03000000");
    gb_init(&b, 1);
    refuse(&b, KVS_E_UNSUPPORTED, "version 1 is not read");
    gb_init(&b, 4);
    refuse(&b, KVS_E_UNSUPPORTED, "version 4 is not known");
    gb_init(&b, 0);
    refuse(&b, KVS_E_UNSUPPORTED, "version 0 is not known");
    gb_init(&b, 3);
    gb_set(&b, 16, UINT64_MAX, 8);
    refuse(&b, KVS_E_FORMAT, "claims 18446744073709551615 keys");
    gb_init(&b, 3);
    gb_set(&b, 8, 1, 8);
    refuse(&b, KVS_E_FORMAT, "claims 1 tensors, too many for a file of 24 bytes");
}

static void bad_key(const char *bytes, size_t n, const char *text)
{
    gb b;
    gb_init(&b, 3);
    gb_count(&b, 16);
    gb_u64(&b, n);
    gb_raw(&b, bytes, n);
    gb_u32(&b, KVS__GGUF_U8);
    gb_le(&b, 0, 1);
    gb_fill(&b, 16);
    refuse(&b, KVS_E_FORMAT, text);
}

static void test_bad_names(void **state)
{
    (void)state;
    bad_key("", 0, "name of key 0 is empty");
    bad_key("caf\xe9", 4, "name of key 0 is not UTF-8 (byte 0xe9 at 3)");
    bad_key("\xc0\xaf", 2, "not UTF-8 (byte 0xc0 at 0)");
    bad_key("\xe0\x80\xaf", 3, "not UTF-8 (byte 0xe0 at 0)");
    bad_key("a\xed\xa0\x80", 4, "not UTF-8 (byte 0xed at 1)");
    bad_key("\xf4\x90\x80\x80", 4, "not UTF-8 (byte 0xf4 at 0)");
    bad_key("\xf0\x9f\x98", 3, "not UTF-8 (byte 0xf0 at 0)");
    bad_key("a\x1b[2J", 5, "holds control character 0x1b at byte 1");
    bad_key("a\0b", 3, "holds control character 0x00 at byte 1");
    bad_key("\xc2\x9b", 2, "holds control character 0x9b at byte 0");
    gb b;
    gb_init(&b, 3);
    gb_key(&b, "\xc3", (kvs__gguf_vtype)0xa9); /* what follows the name would complete it */
    gb_fill(&b, 4);
    refuse(&b, KVS_E_FORMAT, "name of key 0 is not UTF-8");
    gb_init(&b, 3);
    gb_count(&b, 16);
    gb_u64(&b, 65536);
    gb_fill(&b, 66000 - b.n - 1000);
    refuse(&b, KVS_E_FORMAT, "has length 65536, above 65535");
    gb_init(&b, 3);
    gb_count(&b, 16);
    gb_u64(&b, 300);
    gb_fill(&b, 100);
    refuse(&b, KVS_E_FORMAT, "inside the name of key 0 (300 bytes from byte 32)");
    gb_init(&b, 3);
    gb_kv_u32(&b, "k\xc3\xa9y", 1);
    gb_kv_u32(&b, "other", 1);
    gb_kv_u32(&b, "k\xc3\xa9y", 2);
    refuse(&b, KVS_E_FORMAT, "key 'k\xc3\xa9y' occurs twice, as number 0 and 2");
}

/* A name too long for a message is cut between characters. */
static void test_long_name(void **state)
{
    (void)state;
    char name[200] = "xyz";
    for (size_t i = 3; i < 199; i += 2) { /* characters begin at odd bytes, the cut is at 60 */
        memcpy(name + i, "\xc3\xa9", 2);
    }
    gb b;
    gb_init(&b, 3);
    gb_key(&b, name, (kvs__gguf_vtype)99);
    refuse(&b, KVS_E_FORMAT, "\xc3\xa9...': value type 99 is unknown");
}

static void test_bad_values(void **state)
{
    (void)state;
    gb b;
    gb_init(&b, 3);
    gb_kv_int(&b, "flag", KVS__GGUF_BOOL, 2, 1);
    refuse(&b, KVS_E_FORMAT, "key 'flag': bool has value 2");
    gb_init(&b, 3);
    gb_kv_array(&b, "flags", KVS__GGUF_BOOL, 2);
    gb_le(&b, 0xff01, 2);
    refuse(&b, KVS_E_FORMAT, "key 'flags': bool has value 255");
    gb_init(&b, 3);
    gb_key(&b, "odd", (kvs__gguf_vtype)13);
    refuse(&b, KVS_E_FORMAT, "key 'odd': value type 13 is unknown");
    gb_init(&b, 3);
    gb_key(&b, "s", KVS__GGUF_STR);
    gb_u64(&b, UINT64_MAX);
    refuse(&b, KVS_E_FORMAT, "key 's': string of 18446744073709551615 bytes reaches beyond");
    gb_init(&b, 3);
    gb_kv_array(&b, "odd", (kvs__gguf_vtype)77, 0);
    refuse(&b, KVS_E_FORMAT, "key 'odd': array element type 77 is unknown");
    gb_init(&b, 3);
    gb_kv_array(&b, "nest", KVS__GGUF_ARRAY, 1);
    refuse(&b, KVS_E_UNSUPPORTED, "key 'nest' is an array of arrays");
    gb_init(&b, 3);
    gb_kv_array(&b, "much", KVS__GGUF_U64, (uint64_t)1 << 61);
    gb_fill(&b, 64);
    refuse(&b, KVS_E_FORMAT, "key 'much': array of 2305843009213693952 x u64 reaches beyond");
    gb_init(&b, 3);
    gb_kv_array(&b, "much", KVS__GGUF_STR, 9);
    gb_fill(&b, 64);
    refuse(&b, KVS_E_FORMAT, "key 'much': array of 9 x string reaches beyond");
    gb_init(&b, 3);
    gb_kv_array(&b, "strs", KVS__GGUF_STR, 2);
    gb_str(&b, "fine");
    gb_u64(&b, 1000);
    refuse(&b, KVS_E_FORMAT, "key 'strs': string 1 of 2 (1000 bytes) reaches beyond");
}

static void test_bad_alignment(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 1, 4, 24, 0xffffffffu};
    for (size_t i = 0; i < KVS_COUNT(bad); i++) {
        gb b;
        char text[64];
        gb_init(&b, 3);
        gb_kv_u32(&b, "general.alignment", bad[i]);
        (void)snprintf(text, sizeof text, "alignment %u is not a power of two", (unsigned)bad[i]);
        refuse(&b, KVS_E_FORMAT, text);
    }
    gb b;
    gb_init(&b, 3);
    gb_kv_str(&b, "general.alignment", "32");
    refuse(&b, KVS_E_FORMAT, "'general.alignment' is of type string, expected u32");
}

/* One tensor entry over 64 bytes of data. */
static void bad_tensor(uint32_t n_dims, uint64_t ne0, uint64_t ne1, uint32_t type, uint64_t offset,
                       kvs_status want, const char *text)
{
    gb b;
    uint64_t ne[8] = {ne0, ne1, 1, 1, 1, 1, 1, 1};
    gb_init(&b, 3);
    gb_tensor(&b, "t", n_dims, ne, type, offset);
    gb_pad(&b, 32);
    gb_fill(&b, 64);
    refuse(&b, want, text);
}

static void test_bad_tensors(void **state)
{
    (void)state;
    const uint64_t two40 = (uint64_t)1 << 40;
    bad_tensor(0, 1, 1, 0, 0, KVS_E_FORMAT, "tensor 't' has 0 dimensions");
    bad_tensor(5, 1, 1, 0, 0, KVS_E_FORMAT, "tensor 't' has 5 dimensions");
    bad_tensor(2, 1, 0, 0, 0, KVS_E_FORMAT, "tensor 't': dimension 1 is 0");
    bad_tensor(2, two40, two40, 0, 0, KVS_E_FORMAT, "1 x 1 F32 overflows");
    bad_tensor(2, two40, (uint64_t)1 << 24, 10, 0, KVS_E_FORMAT,
               "1 x 1 Q2_K overflows"); /* elements */
    bad_tensor(1, UINT64_MAX - 31, 1, 8, 0, KVS_E_FORMAT, "overflows");
    bad_tensor(1, 48, 1, 8, 0, KVS_E_FORMAT, "rows of 48 elements are no multiple of the 32");
    bad_tensor(1, 128, 1, 12, 0, KVS_E_FORMAT, "no multiple of the 256 of a Q4_K block");
    bad_tensor(1, 256, 1, 23, 0, KVS_E_UNSUPPORTED, "of type IQ4_XS (23), which is not read");
    bad_tensor(1, 256, 1, 999, 0, KVS_E_FORMAT, "tensor 't' is of unknown type 999");
    bad_tensor(1, 256, 1, 32, 0, KVS_E_FORMAT, "tensor 't' is of unknown type 32");
    bad_tensor(1, 4, 1, 0, 8, KVS_E_FORMAT, "offset 8 is not a multiple of the alignment 32");
    bad_tensor(1, 17, 1, 0, 0, KVS_E_FORMAT, "68 bytes at offset 0 reach beyond the file's end");
    bad_tensor(1, 9, 1, 0, 32, KVS_E_FORMAT, "36 bytes at offset 32 reach beyond");
    bad_tensor(1, 1, 1, 0, 96, KVS_E_FORMAT, "4 bytes at offset 96 reach beyond");
    bad_tensor(1, 1, 1, 0, UINT64_MAX - 31, KVS_E_FORMAT, "offset 18446744073709551584 reach");
    gb b;
    const uint64_t ne[1] = {9};
    gb_init(&b, 3);
    gb_tensor(&b, "b", 1, ne, KVS__W_F32, 32);
    gb_tensor(&b, "a", 1, ne, KVS__W_F32, 0);
    gb_pad(&b, 32);
    gb_fill(&b, 68);
    refuse(&b, KVS_E_FORMAT, "tensors 'a' (36 bytes at offset 0) and 'b' (at 32) overlap");
    gb_init(&b, 3);
    gb_tensor(&b, "b", 1, ne, KVS__W_F32, 0);
    gb_tensor(&b, "b", 1, ne, KVS__W_F32, 64);
    gb_pad(&b, 32);
    gb_fill(&b, 100);
    refuse(&b, KVS_E_FORMAT, "tensor 'b' occurs twice, as number 0 and 1");
    gb_init(&b, 3);
    gb_tensor(&b, "n", 1, ne, KVS__W_F32, 0);
    refuse(&b, KVS_E_FORMAT, "36 bytes at offset 0 reach beyond the file's end");
}

/* -- everything at once */

static void test_every_truncation(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        gb b;
        gb_sample(&b, version);
        for (size_t n = 0; n < b.n; n++) {
            kvs__gguf *g = NULL;
            kvs_err err;
            assert_int_equal(open_fenced(b.p, n, &g, &err), KVS_E_FORMAT);
        }
        kvs__gguf *g = open_ok(&b);
        (void)gguf_walk(g);
        kvs__gguf_close(g);
        gb_free(&b);
    }
}

static void test_every_byte_changed(void **state)
{
    (void)state;
    gb b;
    gb_sample(&b, 3);
    size_t opened = 0;
    size_t refused = 0;
    for (size_t at = 0; at < b.n; at++) {
        uint8_t was = b.p[at];
        const uint8_t other[4] = {0, 0xff, (uint8_t)(was + 1), (uint8_t)(was - 1)};
        for (unsigned k = 0; k < 12; k++) {
            b.p[at] = k < 8 ? (uint8_t)(was ^ 1u << k) : other[k - 8];
            kvs__gguf *g = NULL;
            kvs_err err;
            if (open_fenced(b.p, b.n, &g, &err) == KVS_OK) {
                (void)gguf_walk(g);
                kvs__gguf_close(g);
                opened++;
            } else {
                refused++;
            }
        }
        b.p[at] = was;
    }
    assert_true(opened > 0 && refused > 0);
    gb_free(&b);
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    gb b;
    gb_sample(&b, 3);
    int k = 0;
    kvs__gguf *g = NULL;
    for (; !g && k < 100; k++) {
        kvs_err err;
        heap.fail_at = heap.calls + k;
        kvs_status st = open_fenced(b.p, b.n, &g, &err);
        heap.fail_at = -1;
        assert_int_equal(st, g ? KVS_OK : KVS_E_NOMEM);
    }
    assert_true(k > 7 && k < 100);
    kvs__gguf_close(g);
    assert_int_equal(heap.wrong, 0);
    gb_free(&b);
}

/* -- files */

/* Where the system tells: does a mapping of that file exist in this process? */
static bool is_mapped(const char *path)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[4096];
    bool found = false;
    while (f && fgets(line, sizeof line, f)) {
        found = found || strstr(line, path);
    }
    if (f) {
        (void)fclose(f);
    }
    return found;
}

static void test_open_path(void **state)
{
    (void)state;
    gb b;
    gb_sample(&b, 3);
    char path[] = "/tmp/kvs_gguf_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, b.p, b.n), (ssize_t)b.n);
    kvs__gguf *g = NULL;
    kvs_err err = {0};
    size_t before = live();
    assert_int_equal(kvs__gguf_open(ctx, path, &g, &err), KVS_OK);
    assert_int_equal(unlink(path), 0); /* the mapping outlives the name */
    uint64_t sum = gguf_walk(g);
    assert_true(is_mapped(path) || access("/proc/self/maps", R_OK) != 0);
    kvs__gguf_close(g);
    assert_false(is_mapped(path));
    assert_int_equal(live(), before);
    g = open_ok(&b);
    assert_true(gguf_walk(g) == sum);
    kvs__gguf_close(g);
    g = NULL;
    assert_int_equal(close(fd), 0);
    expect(kvs__gguf_open(ctx, path, &g, &err), KVS_E_NOTFOUND, &err, path);
    fd = mkstemp(strcpy(path, "/tmp/kvs_gguf_XXXXXX"));
    assert_int_equal(write(fd, b.p, b.n - 1), (ssize_t)b.n - 1);
    expect(kvs__gguf_open(ctx, path, &g, &err), KVS_E_FORMAT, &err, "reach beyond");
    assert_false(is_mapped(path));
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(path), 0);
    expect(kvs__gguf_open(ctx, "/tmp", &g, &err), KVS_E_IO, &err, "'/tmp' is not a regular file");
    expect(kvs__gguf_open(ctx, "/dev/null", &g, &err), KVS_E_IO, &err, "not a regular file");
    fd = mkstemp(strcpy(path, "/tmp/kvs_gguf_XXXXXX"));
    expect(kvs__gguf_open(ctx, path, &g, &err), KVS_E_FORMAT, &err, "it has 0 bytes");
    assert_null(g);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(path), 0);
    gb_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_getters_refuse),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_nothing_inside),
        cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_absent_names),
        cmocka_unit_test(test_bad_header),
        cmocka_unit_test(test_bad_names),
        cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_bad_alignment),
        cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_every_allocation_fails),
        cmocka_unit_test(test_open_path),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
