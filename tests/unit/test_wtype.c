/* SPDX-License-Identifier: MIT */
/* test_wtype.c: the table of weight types, and the reference decoder against recorded values
 * (tests/golden/record_gguf.py says how they were made). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/half.h"
#include "kern/wtype.h"

#define N_TYPES 13u

static uint8_t *golden;
static size_t golden_bytes;

static int load_golden(void **state)
{
    (void)state;
    FILE *f = fopen(KVS_SOURCE_DIR "/tests/golden/gguf_blocks.bin", "rb");
    if (!f) {
        return -1;
    }
    golden = malloc(1u << 20);
    golden_bytes = golden ? fread(golden, 1, 1u << 20, f) : 0;
    (void)fclose(f);
    return golden_bytes > 8 && golden_bytes < (1u << 20) ? 0 : -1;
}

static int free_golden(void **state)
{
    (void)state;
    free(golden);
    return 0;
}

static uint32_t le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t one_nan(float x)
{
    return x != x ? 0x7fc00000u : kvs__bits_f32(x);
}

/* Decodes n blocks from an odd address and compares bits; returns the bytes of the record. */
static size_t check_record(const kvs__wtype_info *w, const uint8_t *record, size_t n)
{
    size_t src_bytes = n * w->block_bytes;
    size_t elems = n * w->block_elems;
    uint8_t *src = malloc(src_bytes + 1);
    float *dst = malloc(elems * sizeof *dst);
    assert_non_null(src);
    assert_non_null(dst);
    memcpy(src + 1, record, src_bytes);
    kvs__gguf_dequant(w->type, src + 1, elems, dst);
    for (size_t i = 0; i < elems; i++) {
        uint32_t want = le32(record + src_bytes + 4 * i);
        if (one_nan(dst[i]) != want) {
            fail_msg("%s block %zu element %zu: %08x, recorded %08x", w->name, i / w->block_elems,
                     i % w->block_elems, (unsigned)one_nan(dst[i]), (unsigned)want);
        }
    }
    free(src);
    free(dst);
    return src_bytes + 4 * elems;
}

static void test_golden(void **state)
{
    (void)state;
    assert_memory_equal(golden, "KVSW", 4);
    uint32_t n_records = le32(golden + 4);
    assert_int_equal(n_records, N_TYPES);
    size_t at = 8;
    for (uint32_t i = 0; i < n_records; i++) {
        assert_true(at + 8 <= golden_bytes);
        const kvs__wtype_info *w = kvs__wtype_get(le32(golden + at));
        size_t n = le32(golden + at + 4);
        assert_non_null(w);
        assert_true(n >= 10);
        size_t bytes = n * (w->block_bytes + 4 * (size_t)w->block_elems);
        assert_true(bytes <= golden_bytes - at - 8);
        at += 8 + check_record(w, golden + at + 8, n);
    }
    assert_int_equal(at, golden_bytes);
}

/* A row decoded at once is its blocks decoded one by one, and nothing beyond is written. */
static void test_blocks_are_independent(void **state)
{
    (void)state;
    uint8_t src[3 * 256];
    float whole[3 * 256 + 1];
    float one[256];
    for (size_t i = 0; i < sizeof src; i++) {
        src[i] = (uint8_t)(i * 37 + 11);
    }
    const kvs__wtype_info *w = NULL;
    for (size_t t = 0; (w = kvs__wtype_at(t)) != NULL; t++) {
        size_t elems = w->block_elems;
        whole[3 * elems] = 1234.5f;
        kvs__gguf_dequant(w->type, src, 3 * elems, whole);
        assert_true(whole[3 * elems] == 1234.5f);
        for (size_t b = 0; b < 3; b++) {
            kvs__gguf_dequant(w->type, src + b * w->block_bytes, elems, one);
            assert_memory_equal(one, whole + b * elems, elems * sizeof *one);
        }
        kvs__gguf_dequant(w->type, src, 0, NULL);
    }
}

static void test_table(void **state)
{
    (void)state;
    size_t n = 0;
    uint32_t last = 0;
    for (const kvs__wtype_info *w = NULL; (w = kvs__wtype_at(n)) != NULL; n++) {
        assert_ptr_equal(kvs__wtype_get((uint32_t)w->type), w);
        assert_true(n == 0 || (uint32_t)w->type > last);
        assert_true(256 % w->block_elems == 0 && w->block_bytes > 0 && w->block_bytes <= 256);
        last = (uint32_t)w->type;
    }
    assert_int_equal(n, N_TYPES);
    assert_string_equal(kvs__wtype_get(12)->name, "Q4_K");
    static const uint32_t absent[] = {4, 5, 9, 15, 16, 29, 31, 0xffffffffu};
    for (size_t i = 0; i < KVS_COUNT(absent); i++) {
        assert_null(kvs__wtype_get(absent[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_golden, load_golden, free_golden),
        cmocka_unit_test(test_blocks_are_independent),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
