/* SPDX-License-Identifier: MIT */
/* test_sha256.c: FIPS 180-4 vectors, every way of cutting the input, the fast code against the
 * plain one, and XXH3's published values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"

static void hex(const uint8_t d[32], char out[65])
{
    for (int i = 0; i < 32; i++) {
        (void)snprintf(out + 2 * (size_t)i, 3, "%02x", d[i]);
    }
}

static void expect(const void *data, size_t n, const char *want)
{
    uint8_t d[32];
    char text[65];
    kvs__sha256_of(data, n, d);
    hex(d, text);
    assert_string_equal(text, want);
}

static void test_vectors(void **state)
{
    (void)state;
    expect("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    expect("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopq"
           "klmnopqrlmnopqrsmnopqrstnopqrstu",
           112, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    char *million = malloc(1000000);
    assert_non_null(million);
    memset(million, 'a', 1000000);
    expect(million, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

static void test_cuts(void **state)
{
    (void)state;
    uint8_t data[300];
    uint8_t whole[32];
    uint8_t cut[32];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)(i * 37 + 11);
    }
    for (size_t n = 0; n <= sizeof data; n += 13) {
        kvs__sha256_of(data, n, whole);
        for (size_t a = 0; a <= n; a++) {
            kvs__sha256 s;
            kvs__sha256_init(&s);
            kvs__sha256_add(&s, data, a);
            kvs__sha256_add(&s, data + a, n - a);
            kvs__sha256_end(&s, cut);
            assert_memory_equal(whole, cut, 32);
        }
    }
}

static void test_fast(void **state)
{
    (void)state;
    static uint8_t data[64 * 33 + 1];
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < sizeof data; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        data[i] = (uint8_t)x;
    }
    for (size_t n = 0; n < 33; n++) {
        uint32_t a[8] = {1, 2, 3, 4, 5, 6, 7, (uint32_t)n};
        uint32_t b[8];
        memcpy(b, a, sizeof a);
        if (!kvs__sha256_blocks_fast(b, data + 1, n)) {
            print_message("SKIP: this CPU has no SHA instructions\n");
            return;
        }
        kvs__sha256_blocks_plain(a, data + 1, n);
        assert_memory_equal(a, b, sizeof a);
    }
}

static void test_fields(void **state)
{
    (void)state;
    uint8_t a[32];
    uint8_t b[32];
    kvs__sha256 s;
    kvs__sha256_init(&s);
    kvs__sha256_field(&s, "ab", 2);
    kvs__sha256_field(&s, "c", 1);
    kvs__sha256_end(&s, a);
    kvs__sha256_init(&s);
    kvs__sha256_field(&s, "a", 1);
    kvs__sha256_field(&s, "bc", 2);
    kvs__sha256_end(&s, b);
    assert_memory_not_equal(a, b, 32);
}

static void test_xxh3(void **state)
{
    (void)state;
    assert_true(kvs__xxh3("", 0) == 0x2d06800538d394c2u); /* the specification's empty input */
    uint64_t h[2];
    kvs__xxh3_128("", 0, 0, h);
    assert_true(h[0] == 0x6001c324468d497fu && h[1] == 0x99aa06d3014798d8u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors), cmocka_unit_test(test_cuts),
                                       cmocka_unit_test(test_fast), cmocka_unit_test(test_fields),
                                       cmocka_unit_test(test_xxh3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
