/* SPDX-License-Identifier: MIT */
/* test_engine_prompt_refused.c: prompt-cache files that can't be written or loaded, and why; damaged
 * ones; failing memory and failing disks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/stat.h>

#include "engine/gguf_priv.h"
#include "engine/pcache.h"
#include "engine/safetensors_write.h"
#include "support/fail_alloc.h"
#include "support/memfs.h"
#include "support/prompt_rig.h"

/* ---- refusals */

static void save_refused(const kvs_layer_spec *spec, uint32_t tokens, const kvs_prompt_save_opts *o,
                         kvs_status status, const char *says)
{
    kvs_cache *c = make(ctx, spec, 1);
    kvs_err err = {KVS_OK, 0, "", ""};
    feed(c, tokens, 4);
    (void)unlink(path);
    kvs_status st = kvs_prompt_cache_save(c, o, path, &err);
    if (st != status || !strstr(err.msg, says)) {
        fail_msg("status %d, \"%s\"; expected %d, \"%s\"", st, err.msg, status, says);
    }
    assert_int_equal(access(path, F_OK), -1);
    kvs_cache_free(c);
}

static void test_save_refused(void **state)
{
    (void)state;
    const kvs_layer_spec plain = SPEC(1, 64, 64, DENSE(KVS_F16));
    const kvs_layer_spec rotated =
        SPEC(1, 64, 64, .k = {4, 1, 64, KVS_F16}, .v = {4, 1, 64, KVS_F16});
    const kvs_layer_spec apart =
        SPEC(1, 64, 64, .k = {8, 0, 64, KVS_F16}, .v = {4, 0, 64, KVS_F16});
    const kvs_layer_spec groups =
        SPEC(1, 64, 64, .k = {4, 0, 32, KVS_F16}, .v = {4, 0, 64, KVS_F16});
    const kvs_layer_spec types =
        SPEC(1, 64, 64, .k = {4, 0, 64, KVS_F16}, .v = {4, 0, 64, KVS_F32});
    const kvs_layer_spec ring = SPEC(1, 64, 64, AFFINE(4, 64, KVS_F16), RING(20, 0, 8));
    const kvs_layer_spec sinks = SPEC(1, 64, 64, DENSE(KVS_F16), RING(20, 4, 8));
    kvs_prompt_save_opts old = KVS_PROMPT_SAVE_OPTS_INIT;
    old.layout = KVS_PROMPT_MLX_LM_031;
    save_refused(&rotated, 5, NULL, KVS_E_UNSUPPORTED,
                 "layer 0 can't be written for mlx-lm: its codes are rotated");
    save_refused(&apart, 5, NULL, KVS_E_UNSUPPORTED, "other bits or groups");
    save_refused(&groups, 5, NULL, KVS_E_UNSUPPORTED, "other bits or groups");
    save_refused(&types, 5, NULL, KVS_E_UNSUPPORTED, "scales of keys and values");
    save_refused(&ring, 5, NULL, KVS_E_UNSUPPORTED, "a quantised window has no class");
    save_refused(&plain, 0, &old, KVS_E_UNSUPPORTED, "it is empty");
    const struct {
        kvs_prompt_meta meta;
        const char *says;
    } keys[] = {{{"a.b", ""}, "has no dot"}, {{"1a", ""}, "begin like a number"},
                {{"", ""}, "given once"},    {{"a", "\xff"}, "no UTF-8"},
                {{NULL, ""}, "is NULL"},     {{"kvstate_tokens", "1"}, "given once"}};
    const int32_t tokens[5] = {1, 2, 3, 4, 5};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
        o.meta = &keys[i].meta;
        o.n_meta = 1;
        o.tokens = tokens;
        o.n_tokens = 5;
        save_refused(&plain, 5, &o, KVS_E_INVAL, keys[i].says);
    }
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    o.tokens = tokens;
    o.n_tokens = 4;
    save_refused(&plain, 5, &o, KVS_E_INVAL, "4 tokens, the cache holds 5");
    o = (kvs_prompt_save_opts)KVS_PROMPT_SAVE_OPTS_INIT;
    const kvs_prompt_form chunk = {0, 8};
    o.forms = &chunk;
    o.n_forms = 1;
    save_refused(&sinks, 5, &o, KVS_E_UNSUPPORTED, "a ChunkedKVCache is dense");
    o.n_forms = 2;
    save_refused(&plain, 5, &o, KVS_E_INVAL, "2 forms for 1 layers");
    kvs_cache *other = make(ctx, &plain, 1);
    const kvs_cache *more = other;
    o = (kvs_prompt_save_opts)KVS_PROMPT_SAVE_OPTS_INIT;
    o.more = &more;
    o.n_more = 1;
    save_refused(&sinks, 5, &o, KVS_E_INVAL, "row 1 has another plan");
    kvs_cache_free(other);
    other = make(ctx, &sinks, 1);
    more = other;
    save_refused(&sinks, 5, &o, KVS_E_UNSUPPORTED, "a batch has no sinks");
    kvs_cache_free(other);
    struct {
        kvs_prompt_save_opts o;
        uint64_t tail;
    } longer = {KVS_PROMPT_SAVE_OPTS_INIT, 1};
    longer.o.struct_size = sizeof longer;
    save_refused(&plain, 5, &longer.o, KVS_E_UNSUPPORTED, "kvs_prompt_save_opts");
}

static void load_refused(const kvs_layer_spec *from, uint32_t tokens, const kvs_layer_spec *to,
                         kvs_status status, const char *says)
{
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    kvs_cache *a = make(ctx, from, 1);
    kvs_cache *b = make(ctx, to, 1);
    kvs_err err = {KVS_OK, 0, "", ""};
    feed(a, tokens, 4);
    save(a, &o);
    kvs_prompt_cache *f = open_file(path);
    kvs_status st = kvs_prompt_cache_load(f, 0, b, &err);
    if (st != status || !strstr(err.msg, says) || !strstr(err.msg, "layer 0")) {
        fail_msg("status %d, \"%s\"; expected %d, \"%s\"", st, err.msg, status, says);
    }
    assert_int_equal(kvs_cache_length(b, 0), 0);
    kvs_prompt_cache_close(f);
    kvs_cache_free(a);
    kvs_cache_free(b);
}

static void test_load_refused(void **state)
{
    (void)state;
    const kvs_layer_spec f16 = SPEC(2, 64, 64, DENSE(KVS_F16));
    const kvs_layer_spec bf16 = SPEC(2, 64, 64, DENSE(KVS_BF16));
    const kvs_layer_spec heads = SPEC(1, 64, 64, DENSE(KVS_F16));
    const kvs_layer_spec dims = SPEC(2, 64, 128, DENSE(KVS_F16));
    const kvs_layer_spec q4 = SPEC(2, 64, 64, .k = {4, 1, 64, KVS_F16}, .v = {4, 1, 64, KVS_F16});
    const kvs_layer_spec a4 = SPEC(2, 64, 64, AFFINE(4, 64, KVS_F16));
    const kvs_layer_spec a4g = SPEC(2, 64, 64, AFFINE(4, 32, KVS_F16));
    const kvs_layer_spec w24 = SPEC(2, 64, 64, DENSE(KVS_F16), RING(24, 0, 8));
    const kvs_layer_spec w32 = SPEC(2, 64, 64, DENSE(KVS_F16), RING(32, 0, 8));
    const kvs_layer_spec w24s = SPEC(2, 64, 64, DENSE(KVS_F16), RING(24, 2, 8));
    const kvs_layer_spec all = SPEC(2, 64, 64, DENSE(KVS_F16), .window = 24);
    const kvs_layer_spec late =
        SPEC(2, 64, 64, AFFINE(4, 64, KVS_F16), .dense_until = 50, .dense_dtype = KVS_F16);
    load_refused(&f16, 5, &bf16, KVS_E_UNSUPPORTED,
                 "keys are f16 in the file, the plan keeps bf16");
    load_refused(&f16, 5, &heads, KVS_E_UNSUPPORTED, "2 heads of 64/64");
    load_refused(&f16, 5, &dims, KVS_E_UNSUPPORTED, "2 of 64/128");
    load_refused(&a4, 5, &q4, KVS_E_UNSUPPORTED, "rotated codes can't be exchanged");
    load_refused(&a4, 5, &a4g, KVS_E_UNSUPPORTED,
                 "keys are affine4:64 in the file, the plan keeps affine4:32");
    load_refused(&a4, 5, &f16, KVS_E_UNSUPPORTED, "the plan keeps f16");
    load_refused(&a4, 5, &late, KVS_E_UNSUPPORTED, "the plan keeps f16 before its start");
    load_refused(&f16, 60, &late, KVS_E_UNSUPPORTED, "the plan keeps affine4:64");
    load_refused(&w24, 60, &w32, KVS_E_UNSUPPORTED,
                 "a window of 24 and 0 sinks in the file, 32 and 0");
    load_refused(&w24, 60, &w24s, KVS_E_UNSUPPORTED, "24 and 2 in the plan");
    load_refused(&w24, 60, &f16, KVS_E_UNSUPPORTED, "0 and 0 in the plan (0: none)");
    load_refused(&w24, 60, &all, KVS_E_UNSUPPORTED, "this plan keeps all");
    /* nothing dropped or hidden yet: any window will do */
    kvs_cache *a = make(ctx, &w24, 1);
    feed(a, 20, 4);
    save(a, NULL);
    const kvs_layer_spec *const fits[] = {&w24, &w32, &w24s, &f16, &all};
    for (size_t i = 0; i < sizeof fits / sizeof fits[0]; i++) {
        kvs_cache *b = make(ctx, fits[i], 1);
        kvs_prompt_cache *f = open_file(path);
        assert_int_equal(kvs_prompt_cache_load(f, 0, b, NULL), KVS_OK);
        assert_int_equal(kvs_cache_length(b, 0), 20);
        kvs_prompt_cache_close(f);
        kvs_cache_free(b);
    }
    kvs_layer_spec two[2] = {w24, w24};
    kvs_cache *b = make(ctx, two, 2);
    kvs_prompt_cache *f = open_file(path);
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_prompt_cache_load(f, 0, b, &err), KVS_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "1 layers in the file, the model keeps 2"));
    assert_int_equal(kvs_cache_length(b, 0), 0);
    kvs_prompt_cache_close(f);
    kvs_cache_free(a);
    kvs_cache_free(b);
}

/* ---- damage */

static uint8_t *read_whole(size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    (void)fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *p = malloc(*n);
    assert_int_equal(fread(p, 1, *n, f), *n);
    (void)fclose(f);
    return p;
}

/* Opens in an allocation of exactly n bytes, so that a sanitizer sees any access outside; loads. */
static kvs_status try_bytes(const uint8_t *bytes, size_t n, const kvs_layer_spec *specs, uint32_t k,
                            kvs_err *err)
{
    uint8_t *p = malloc(n ? n : 1);
    memcpy(p, bytes, n);
    kvs_prompt_cache *f = NULL;
    kvs_status st = kvs__prompt_cache_open_mem(ctx, p, n, "damaged", &f, err);
    assert_true((st == KVS_OK) == (f != NULL));
    if (f) {
        kvs_cache *c = make(ctx, specs, k);
        st = kvs_prompt_cache_load(f, 0, c, err);
        assert_true(st == KVS_OK || kvs_cache_length(c, 0) == 0);
        kvs_cache_free(c);
    }
    kvs_prompt_cache_close(f);
    free(p);
    return st;
}

static void test_damage(void **state)
{
    (void)state;
    const kvs_layer_spec specs[3] = {SPEC(1, 32, 32, DENSE(KVS_F16)),
                                     SPEC(1, 32, 32, AFFINE(4, 32, KVS_F16)),
                                     SPEC(1, 32, 32, DENSE(KVS_F16), RING(4, 1, 1))};
    kvs_cache *a = make(ctx, specs, 3);
    feed(a, 9, 6);
    for (int layout = 0; layout < 2; layout++) {
        kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
        kvs_err err = {KVS_OK, 0, "", ""};
        size_t n = 0;
        o.layout = (kvs_prompt_layout)layout;
        save(a, &o);
        uint8_t *p = read_whole(&n);
        uint64_t header = kvs__gguf_le64(p);
        assert_int_equal(try_bytes(p, n, specs, 3, &err), KVS_OK);
        for (size_t cut = 0; cut < n; cut += cut < 64 ? 1 : 37) {
            assert_true(try_bytes(p, cut, specs, 3, &err) < 0);
        }
        for (size_t i = 0; i < 8 + header; i++) {
            for (int bit = 0; bit < 8; bit += 3) {
                p[i] ^= (uint8_t)(1 << bit);
                (void)try_bytes(p, n, specs, 3, &err);
                p[i] ^= (uint8_t)(1 << bit);
            }
        }
        free(p);
    }
    kvs_cache_free(a);
}

/* Numbers that contradict the tensors are told, each by name. */
static void test_contradictions(void **state)
{
    (void)state;
    const kvs_layer_spec specs[2] = {SPEC(1, 32, 32, AFFINE(4, 32, KVS_F16)),
                                     SPEC(1, 32, 32, DENSE(KVS_F16), RING(4, 1, 1))};
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    const struct {
        const char *from, *to, *says;
    } swaps[] = {
        {"\"0.0.0\":\"9\"", "\"0.0.0\":\"8\"", NULL}, /* spare rows are fine */
        {"\"0.0.0\":\"9\"", "\"0.0.0\":\"x\"", "layer 0: offset is missing or no count"},
        {"\"0.0.0\":\"9\"", "\"0.0.0\":\"-\"", "offset is missing"},
        {"\"0.0.1\":\"32\"", "\"0.0.1\":\"64\"", "words, scales and biases do not fit"},
        {"\"0.0.1\":\"32\"", "\"0.0.1\":\"33\"", "4 bits in groups of 33"},
        {"\"0.0.2\":\"4\"", "\"0.0.2\":\"8\"", "words, scales and biases do not fit"},
        {"\"0.0.2\":\"4\"", "\"0.0.2\":\"7\"", "7 bits in groups of 32"},
        {"\"0.1.1\":\"5\"", "\"0.1.1\":\"1\"", "max_size does not hold what it keeps"},
        {"\"0.1.2\":\"9\"", "\"0.1.2\":\"3\"", "offset and index do not fit"},
        {"\"0.1.3\":\"9\"", "\"0.1.3\":\"8\"", "offset and index do not fit"},
        {"\"0.1.3\":\"9\"", "\"0.1.3\":\"0\"", "offset and index do not fit"},
        {"\"QuantizedKVCache\"", "\"QuantizedKVCachX\"", "class \"QuantizedKVCachX\" is not known"},
        {"\"2.0\":", "\"3.0\":", "the metadata names no classes"},
        {"\"0.0.1\":", "\"0.0.2\":", "a name twice"},
        {"\"1.0\":{", "\"1.7\":{", "no tensor 1.0"},
        {"\"F16\",\"shape\":[1,1,9,1]", "\"I16\",\"shape\":[1,1,9,1]", "do not fit its bits"},
        {"\"shape\":[1,1,9,32]", "\"shape\":[1,9,1,32]", "another shape than"},
    };
    kvs_cache *a = make(ctx, specs, 2);
    feed(a, 9, 6);
    o.layout = KVS_PROMPT_MLX_LM_031;
    save(a, &o);
    size_t n = 0;
    uint8_t *p = read_whole(&n);
    for (size_t i = 0; i < sizeof swaps / sizeof swaps[0]; i++) {
        kvs_err err = {KVS_OK, 0, "", ""};
        uint8_t *q = malloc(n);
        memcpy(q, p, n);
        size_t len = strlen(swaps[i].from);
        size_t at = 0;
        while (at + len <= n && memcmp(q + at, swaps[i].from, len) != 0) {
            at++;
        }
        if (at + len > n) {
            fail_msg("%s is not in the file", swaps[i].from);
        }
        memcpy(q + at, swaps[i].to, len);
        kvs_status st = try_bytes(q, n, specs, 2, &err);
        if (swaps[i].says ? (st >= 0 || !strstr(err.msg, swaps[i].says)) : st != KVS_OK) {
            fail_msg("%s: %d \"%s\"; expected \"%s\"", swaps[i].to, st, err.msg, swaps[i].says);
        }
        free(q);
    }
    free(p);
    kvs_cache_free(a);
}

/* ---- failing memory, failing disk */

static void test_memory(void **state)
{
    (void)state;
    const kvs_layer_spec specs[2] = {SPEC(1, 32, 32, AFFINE(4, 32, KVS_F16)),
                                     SPEC(1, 32, 32, DENSE(KVS_F16), RING(4, 1, 1))};
    const kvs_prompt_meta meta = {"note", "\n"};
    const int32_t tokens[9] = {0};
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    fail_alloc fa = FAIL_ALLOC_INIT;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_ctx *c = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    co.n_threads = 1;
    co.alloc = fail_alloc_take;
    co.free = fail_alloc_give;
    co.alloc_user = &fa;
    assert_int_equal(kvs_ctx_new(&co, &c, NULL), KVS_OK);
    kvs_cache *a = make(c, specs, 2);
    kvs_cache *b = make(c, specs, 2);
    feed(a, 9, 6);
    o.layout = KVS_PROMPT_MLX_LM_031;
    o.meta = &meta;
    o.n_meta = 1;
    o.tokens = tokens;
    o.n_tokens = 9;
    (void)unlink(path);
    long blocks = fa.blocks;
    long k = 0;
    for (kvs_status st = KVS_E_NOMEM; st != KVS_OK; k++) {
        fa.calls = 0;
        fa.fail_at = k;
        st = kvs_prompt_cache_save(a, &o, path, &err);
        fa.fail_at = -1;
        assert_true(st == KVS_OK || st == KVS_E_NOMEM);
        assert_int_equal(access(path, F_OK) == 0, st == KVS_OK);
        assert_int_equal(fa.blocks, blocks);
    }
    assert_true(k > 5);
    for (kvs_status st = KVS_E_NOMEM; st != KVS_OK; k++) {
        kvs_prompt_cache *f = NULL;
        fa.calls = 0;
        fa.fail_at = k - 6;
        st = kvs_prompt_cache_open(c, path, &f, &err);
        fa.fail_at = -1;
        assert_true(st == KVS_OK || (st == KVS_E_NOMEM && !f));
        kvs_prompt_cache_close(f);
        assert_int_equal(fa.blocks, blocks);
    }
    kvs_prompt_cache *f = NULL;
    assert_int_equal(kvs_prompt_cache_open(c, path, &f, &err), KVS_OK);
    k = 0;
    for (kvs_status st = KVS_E_NOMEM; st != KVS_OK; k++) {
        fa.calls = 0;
        fa.fail_at = k;
        st = kvs_prompt_cache_load(f, 0, b, &err);
        fa.fail_at = -1;
        assert_true(st == KVS_OK || st == KVS_E_NOMEM);
        assert_int_equal(kvs_cache_length(b, 0), st == KVS_OK ? 9 : 0);
    }
    assert_true(k > 2);
    same_layer(a, b, 1);
    kvs_prompt_cache_close(f);
    kvs_cache_free(a);
    kvs_cache_free(b);
    kvs_ctx_free(c);
    assert_int_equal(fa.blocks, 0);
    assert_int_equal(fa.wrong, 0);
}

/* One tensor of 3 numbers and a note; 0: published. */
static kvs_status write_small(kvs__vfs *v, const char *text, kvs_err *err)
{
    kvs__st_writer *w = NULL;
    const size_t dims[1] = {3};
    const int32_t data[3] = {1, 2, 3};
    kvs_status st = kvs__st_writer_new(ctx, &w, err);
    st = st == KVS_OK ? kvs__st_meta(w, "note", text, err) : st;
    st = st == KVS_OK ? kvs__st_tensor_declare(w, "x", KVS__ST_I32, 1, dims, err) : st;
    st = st == KVS_OK ? kvs__st_begin(w, v, "/d/file", err) : st;
    st = st == KVS_OK ? kvs__st_data(w, data, sizeof data, err) : st;
    st = st == KVS_OK ? kvs__st_commit(w, err) : st;
    kvs__st_writer_free(w);
    return st;
}

/* What lies under the final name, and nothing else lies there; its note. */
static char note_of(memfs *m)
{
    assert_true(memfs_look(m, "/d/file") >= 0);
    const memfs_inode *x = &m->inodes[m->names[memfs_look(m, "/d/file")].inode];
    kvs__safetensors *s = NULL;
    assert_int_equal(kvs__safetensors_open_mem(ctx, x->data, x->n, "file", &s, NULL), KVS_OK);
    kvs__jval v = kvs__json_get(kvs__safetensors_metadata(s), "note");
    char c = kvs__json_raw(v).ptr[0];
    kvs__safetensors_close(s);
    return c;
}

static void test_disk(void **state)
{
    (void)state;
    kvs_err err = {KVS_OK, 0, "", ""};
    memfs *m = memfs_new();
    assert_int_equal(m->v.mkdir(&m->v, "/d"), 0);
    assert_int_equal(write_small(&m->v, "a", &err), KVS_OK);
    assert_int_equal(note_of(m), 'a');
    int names = m->n_names;
    kvs_status st = KVS_E_IO;
    for (long k = 0; st != KVS_OK; k++) {
        m->calls = 0;
        m->fail_at = k;
        m->fail_errno = ENOSPC;
        st = write_small(&m->v, "b", &err);
        bool done = m->calls <= k;
        m->fail_at = -1;
        assert_int_equal(st == KVS_OK, done);
        assert_true(st == KVS_OK || (st == KVS_E_IO && err.sys_errno == ENOSPC));
        assert_true(note_of(m) == (st == KVS_OK ? 'b' : 'a') || m->calls >= 5);
        assert_int_equal(m->n_names, names); /* no temporary file stays */
    }
    memfs_free(m);
    const kvs_layer_spec spec = SPEC(1, 32, 32, DENSE(KVS_F16));
    kvs_cache *a = make(ctx, &spec, 1);
    assert_int_equal(kvs_prompt_cache_save(a, NULL, "/nonexistent/x", &err), KVS_E_IO);
    assert_non_null(strstr(err.msg, "/nonexistent/x"));
    save(a, NULL);
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    kvs_cache_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_refused), cmocka_unit_test(test_load_refused),
        cmocka_unit_test(test_damage),       cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_memory),       cmocka_unit_test(test_disk),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
