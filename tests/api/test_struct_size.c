/* SPDX-License-Identifier: MIT */
/* test_struct_size.c: programs built against an older or a newer header than the library.
 *
 * Options: a shorter struct means defaults for the rest; a longer one is accepted while its tail is
 * zero and refused, naming the byte, when it is not. Results: nothing is written beyond the
 * caller's struct_size, which keeps its value. Linked with the shared library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "kvstate/kvstate.h"
#include "support/remove_tree.h"

#define TAIL 24

typedef kvs_status (*read_fn)(const void *opts, kvs_err *err);
typedef kvs_status (*write_fn)(void *stats);

static kvs_status read_ctx_opts(const void *opts, kvs_err *err)
{
    kvs_ctx *ctx = NULL;
    kvs_status st = kvs_ctx_new(opts, &ctx, err);
    assert_int_equal(st == KVS_OK, ctx != NULL);
    kvs_ctx_free(ctx);
    return st;
}

static kvs_status read_mask_desc(const void *desc, kvs_err *err)
{
    kvs_mask_shape s = KVS_MASK_SHAPE_INIT;
    kvs_status st = kvs_mask_plan(desc, &s, err);
    assert_true(st != KVS_OK || s.bytes == 6);
    return st;
}

/* ---- a cache of one layer: 1 KV head of 16 dense elements, 2 tokens stored */

static kvs_ctx *the_ctx;
static kvs_cache *the_cache;
static float numbers[2][16];
static float result[2][16];

static const kvs_layer_spec spec = {sizeof(kvs_layer_spec),
                                    1,
                                    16,
                                    16,
                                    KVS_CODEC_DENSE(KVS_F32),
                                    KVS_CODEC_DENSE(KVS_F32),
                                    KVS_LAYOUT_GROW,
                                    0,
                                    0,
                                    0,
                                    0,
                                    KVS_F32,
                                    KVS_LAYER_ATTENTION,
                                    0,
                                    0,
                                    NULL};
static const kvs_cache_opts cache_opts = {sizeof(kvs_cache_opts), 1, &spec, 0, NULL, 0, 0};
static const kvs_kv kv = {sizeof(kvs_kv), 2, KVS_F32, numbers, numbers, 0, 0, 0, 0};
static const kvs_attend attend = {sizeof(kvs_attend),
                                  KVS_READ_CAUSAL,
                                  2,
                                  1,
                                  KVS_F32,
                                  KVS_F32,
                                  numbers,
                                  0,
                                  0,
                                  result,
                                  0,
                                  0,
                                  0.25f,
                                  0.0f,
                                  NULL,
                                  -1,
                                  NULL,
                                  NULL};
static const kvs_planes planes = {
    sizeof(kvs_planes), {result, NULL, NULL}, {NULL, NULL, NULL}, NULL};

static kvs_status read_cache_opts(const void *opts, kvs_err *err)
{
    kvs_cache *cache = NULL;
    kvs_status st = kvs_cache_new(the_ctx, opts, &cache, err);
    assert_int_equal(st == KVS_OK, cache != NULL);
    kvs_cache_free(cache);
    return st;
}

static kvs_status read_layer_spec(const void *layer, kvs_err *err)
{
    kvs_cache_opts o = cache_opts;
    o.layers = layer;
    return read_cache_opts(&o, err);
}

static kvs_status read_kv(const void *tokens, kvs_err *err)
{
    int64_t before = kvs_cache_length(the_cache, 0);
    kvs_status st = kvs_cache_append(the_cache, 0, tokens, err);
    assert_int_equal(kvs_cache_length(the_cache, 0), before + (st == KVS_OK ? 2 : 0));
    return st;
}

static kvs_status read_attend(const void *desc, kvs_err *err)
{
    return kvs_cache_attend(the_cache, 0, desc, err);
}

static const kvs_pages_opts pages_opts = {sizeof(kvs_pages_opts), 32, 0, 1000000, 4096};

static kvs_status read_pages_opts(const void *opts, kvs_err *err)
{
    kvs_pages *pages = NULL;
    kvs_status st = kvs_pages_new(the_ctx, opts, &pages, err);
    assert_int_equal(st == KVS_OK, pages != NULL);
    kvs_pages_free(pages);
    return st;
}

static kvs_status read_planes(const void *dst, kvs_err *err)
{
    return kvs_cache_export(the_cache, 0, 0, 2, dst, err);
}

/* ---- a recurrent layer of one head */

static kvs_cache *the_recurrent;
static const kvs_recurrent_spec rec_spec = {
    sizeof(kvs_recurrent_spec), KVS_RECURRENT_GATED_DELTA, 1, 1, 4, 4, 12, 2, KVS_F32, 0, 0, 0};
static kvs_recurrent_conv_desc conv_desc = KVS_RECURRENT_CONV_DESC_INIT;
static kvs_recurrent_step rec_step = KVS_RECURRENT_STEP_INIT;
static kvs_recurrent_planes rec_planes = KVS_RECURRENT_PLANES_INIT;

static kvs_status new_recurrent(const void *rec, kvs_cache **out, kvs_err *err)
{
    kvs_layer_spec l = KVS_LAYER_SPEC_INIT;
    kvs_cache_opts o = cache_opts;
    l.kind = KVS_LAYER_RECURRENT;
    l.recurrent = rec;
    o.layers = &l;
    return kvs_cache_new(the_ctx, &o, out, err);
}

static kvs_status read_rec_spec(const void *rec, kvs_err *err)
{
    kvs_cache *cache = NULL;
    kvs_status st = new_recurrent(rec, &cache, err);
    kvs_cache_free(cache);
    return st;
}

static kvs_status read_conv_desc(const void *desc, kvs_err *err)
{
    return kvs_recurrent_conv(the_recurrent, 0, desc, err);
}

static kvs_status read_rec_step(const void *step, kvs_err *err)
{
    int64_t before = kvs_cache_length(the_recurrent, 0);
    kvs_status st = kvs_recurrent_advance(the_recurrent, 0, step, err);
    assert_int_equal(kvs_cache_length(the_recurrent, 0), before + (st == KVS_OK ? 1 : 0));
    return st;
}

static kvs_status read_rec_planes(const void *dst, kvs_err *err)
{
    int64_t at = kvs_cache_length(the_recurrent, 0);
    return kvs_recurrent_export(the_recurrent, 0, at, dst, err);
}

/* ---- a set of one row, and a rectangle of its two tokens */

static kvs_rows *the_rows;
static const kvs_rect_row rect_row = {2, 0, 0, 2};
static const kvs_rect rect = {sizeof(kvs_rect), 0, 0, KVS_F32, 2, &rect_row, &planes};
static const kvs_txn_opts txn_opts = {sizeof(kvs_txn_opts), KVS_TXN_DRAFTS, 0, NULL};

static kvs_status read_rect(const void *desc, kvs_err *err)
{
    return kvs_rect_export(the_rows, desc, err);
}

static kvs_status read_txn_opts(const void *opts, kvs_err *err)
{
    kvs_status st = kvs_txn_begin(the_rows, opts, err);
    assert_int_equal(kvs_txn_abort(the_rows, NULL), st == KVS_OK ? KVS_OK : KVS_E_STATE);
    return st;
}

/* ---- a store with one entry, an index with one, a set of items with one */

static char store_dir[64];
static kvs_store *the_store;
static kvs_entry the_entry;
static kvs_pages *the_pages;
static kvs_cache *paged_cache;
static kvs_prefix *the_index;
static kvs_retain *the_retain;
static kvs_retain_id the_item;
static const uint8_t identity[KVS_DIGEST_BYTES] = {1};
static const int32_t ids[3] = {1, 2, 3};
static const kvs_store_key key = {identity, "ns", 2, ids, 2};
static const kvs_store_key longer = {identity, "ns", 2, ids,
                                     3}; /* a hit leaves a token to compute */

static kvs_entry never(void *user, uint64_t bytes, kvs_evictable_fn evictable, const void *arg)
{
    (void)user;
    (void)bytes;
    (void)evictable;
    (void)arg;
    return 0;
}
static const kvs_store_policy policy = {sizeof(kvs_store_policy), NULL, NULL, NULL, NULL, never};
static const kvs_store_opts store_opts = {
    sizeof(kvs_store_opts), KVS_STORE_READONLY_BUSY, 1, 1000000, 1000, 4, 1, 1, 0, NULL, NULL};
static const kvs_store_put_opts put_opts = {
    sizeof(kvs_store_put_opts), KVS_PUT_DURABLE, 1, 2, 3, 4, NULL, NULL};
static const kvs_store_query query = {sizeof(kvs_store_query), KVS_FIND_OVERLAP, 0, 1, 2};
static const kvs_identity_desc identity_desc = {
    sizeof(kvs_identity_desc), {"m", 1}, {"p", 1}, {"r", 1}, {"a", 1}, {"i", 1}, {"s", 1}};
static const kvs_prefix_opts prefix_opts = {sizeof(kvs_prefix_opts),
                                            KVS_PREFIX_SNAPSHOTS,
                                            KVS_RETAIN_LRU,
                                            (size_t)1 << 40,
                                            64,
                                            9,
                                            NULL,
                                            NULL};
static const kvs_prefix_publish_opts publish_opts = {
    sizeof(kvs_prefix_publish_opts), KVS_PREFIX_MIDWAY, 1, 7, ids, sizeof ids, 4, 5, 0};
static const kvs_retain_opts retain_opts = {
    sizeof(kvs_retain_opts), KVS_RETAIN_COST, 10, 1000, NULL, NULL};
static const kvs_retain_item retain_item = {sizeof(kvs_retain_item), 77, 8, 2, 1, 2, 3, 0, 9};

static kvs_status read_store_opts(const void *opts, kvs_err *err)
{
    kvs_store *s = NULL;
    kvs_status st = kvs_store_open(the_ctx, store_dir, opts, &s, err);
    size_t size = 0;
    memcpy(&size, opts, sizeof size);
    /* without the flag the directory is busy: that, too, was read */
    bool busy = st == KVS_E_STATE && size < offsetof(kvs_store_opts, n_threads);
    assert_int_equal(st == KVS_OK, s != NULL);
    kvs_store_close(s);
    return busy ? KVS_OK : st;
}

static kvs_status read_store_policy(const void *p, kvs_err *err)
{
    kvs_store_opts o = store_opts;
    o.policy = p;
    return read_store_opts(&o, err);
}

static kvs_status read_put_opts(const void *opts, kvs_err *err)
{
    kvs_store_part part = {"k", 0, 0, sizeof numbers, numbers, 0, 0, NULL, NULL};
    kvs_store_key other = {identity, "other", 5, ids, 2};
    kvs_status st = kvs_store_put(the_store, &other, &part, 1, opts, err);
    (void)kvs_store_flush(the_store, NULL);
    return st;
}

static kvs_status find(const void *q, void *hit, kvs_err *err)
{
    kvs_store_hit mine = KVS_STORE_HIT_INIT;
    kvs_status st = kvs_store_find(the_store, &key, q, hit ? hit : &mine, err);
    if (st == KVS_OK) {
        assert_int_equal(kvs_store_unpin(the_store, the_entry), KVS_OK);
    }
    kvs_entry_info info = KVS_ENTRY_INFO_INIT;
    assert_int_equal(kvs_store_entry_info(the_store, the_entry, &info), KVS_OK);
    assert_int_equal(info.pins, 0); /* a refusal pins nothing */
    return st;
}

static kvs_status read_query(const void *q, kvs_err *err)
{
    return find(q, NULL, err);
}

static kvs_status read_identity_desc(const void *desc, kvs_err *err)
{
    uint8_t out[KVS_DIGEST_BYTES];
    return kvs_identity_digest(desc, out, err);
}

/* A pool has one index: this one has a pool of its own. */
static kvs_status new_index(const void *opts, kvs_pages **pages, kvs_cache **cache,
                            kvs_prefix **out, kvs_err *err)
{
    kvs_layer_spec s = spec;
    kvs_cache_opts o = cache_opts;
    s.layout = KVS_LAYOUT_PAGED;
    o.layers = &s;
    assert_int_equal(kvs_pages_new(the_ctx, NULL, pages, NULL), KVS_OK);
    o.pages = *pages;
    assert_int_equal(kvs_cache_new(the_ctx, &o, cache, NULL), KVS_OK);
    assert_int_equal(kvs_cache_append(*cache, 0, &kv, NULL), KVS_OK);
    return kvs_prefix_new(the_ctx, *cache, opts, out, err);
}

static kvs_status read_prefix_opts(const void *opts, kvs_err *err)
{
    kvs_pages *pages = NULL;
    kvs_cache *cache = NULL;
    kvs_prefix *ix = NULL;
    kvs_status st = new_index(opts, &pages, &cache, &ix, err);
    assert_int_equal(st == KVS_OK, ix != NULL);
    kvs_prefix_free(ix);
    kvs_cache_free(cache);
    kvs_pages_free(pages);
    return st;
}

static kvs_status read_publish_opts(const void *opts, kvs_err *err)
{
    size_t n = 9;
    kvs_status st = kvs_prefix_publish(the_index, &key, paged_cache, opts, &n, err);
    assert_int_equal(n, st == KVS_OK ? 2 : 0);
    return st;
}

static kvs_status read_retain_opts(const void *opts, kvs_err *err)
{
    kvs_retain *r = NULL;
    kvs_status st = kvs_retain_new(the_ctx, opts, &r, err);
    assert_int_equal(st == KVS_OK, r != NULL);
    kvs_retain_free(r);
    return st;
}

static kvs_status read_retain_item(const void *item, kvs_err *err)
{
    kvs_retain_id id = 0;
    kvs_status st = kvs_retain_add(the_retain, item, &id, err);
    assert_int_equal(kvs_retain_drop(the_retain, id, KVS_RETAIN_FORGOTTEN),
                     st == KVS_OK ? KVS_OK : KVS_E_NOTFOUND);
    return st;
}

static int setup_store(void)
{
    kvs_store_part part = {"k", 0, 0, sizeof numbers, numbers, 0, 0, NULL, NULL};
    kvs_store_put_opts o = put_opts;
    kvs_entry_info info = KVS_ENTRY_INFO_INIT;
    kvs_retain_item item = retain_item;
    item.key = 1;
    (void)snprintf(store_dir, sizeof store_dir, "/tmp/kvstate-sizes-XXXXXX");
    return !mkdtemp(store_dir) || kvs_store_open(the_ctx, store_dir, NULL, &the_store, NULL) ||
           kvs_store_put(the_store, &key, &part, 1, &o, NULL) ||
           kvs_store_list(the_store, &the_entry, &info) ||
           new_index(NULL, &the_pages, &paged_cache, &the_index, NULL) ||
           kvs_prefix_publish(the_index, &key, paged_cache, NULL, NULL, NULL) ||
           kvs_retain_new(the_ctx, NULL, &the_retain, NULL) ||
           kvs_retain_add(the_retain, &item, &the_item, NULL);
}

static int setup_rows(void)
{
    kvs_cache *row = NULL;
    return kvs_cache_fork(the_cache, KVS_ALL_TOKENS, &row, NULL) ||
           kvs_rows_merge(the_ctx, &row, 1, &the_rows, NULL);
}

static int setup(void **state)
{
    (void)state;
    conv_desc.n_tokens = 1;
    conv_desc.x = numbers[0];
    conv_desc.weight = numbers[0];
    conv_desc.out = result[0];
    rec_step.n_tokens = 1;
    rec_step.conv_x = numbers[0];
    rec_step.k = rec_step.v = rec_step.a = rec_step.b = rec_step.decay = numbers[0];
    rec_planes.conv = result[0];
    return kvs_ctx_new(NULL, &the_ctx, NULL) || new_recurrent(&rec_spec, &the_recurrent, NULL) ||
           kvs_cache_new(the_ctx, &cache_opts, &the_cache, NULL) ||
           kvs_cache_append(the_cache, 0, &kv, NULL) || setup_rows() || setup_store();
}

static int teardown(void **state)
{
    (void)state;
    kvs_retain_free(the_retain);
    kvs_prefix_free(the_index);
    kvs_cache_free(paged_cache);
    kvs_pages_free(the_pages);
    kvs_store_close(the_store);
    remove_tree(store_dir);
    kvs_rows_free(the_rows);
    kvs_cache_free(the_cache);
    kvs_cache_free(the_recurrent);
    kvs_ctx_free(the_ctx);
    return 0;
}

static const kvs_ctx_opts ctx_opts = KVS_CTX_OPTS_INIT;
static const kvs_mask_desc mask_desc = {sizeof(kvs_mask_desc),
                                        KVS_MASK_CAUSAL,
                                        KVS_MASK_BOOL,
                                        0,
                                        2,
                                        0,
                                        1,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        NULL,
                                        NULL,
                                        NULL};

static const struct {
    const char *name;
    const void *good;
    size_t size;
    size_t oldest; /* the first size that ever was published holds this much */
    read_fn call;
} options[] = {
    {"kvs_ctx_opts", &ctx_opts, sizeof ctx_opts, sizeof(size_t), read_ctx_opts},
    {"kvs_mask_desc", &mask_desc, sizeof mask_desc, offsetof(kvs_mask_desc, n_keys),
     read_mask_desc},
    {"kvs_cache_opts", &cache_opts, sizeof cache_opts, offsetof(kvs_cache_opts, reserve_tokens),
     read_cache_opts},
    {"kvs_layer_spec", &spec, sizeof spec, offsetof(kvs_layer_spec, layout), read_layer_spec},
    {"kvs_kv", &kv, sizeof kv, offsetof(kvs_kv, k_token_stride), read_kv},
    {"kvs_attend", &attend, sizeof attend, offsetof(kvs_attend, softcap), read_attend},
    {"kvs_pages_opts", &pages_opts, sizeof pages_opts, offsetof(kvs_pages_opts, chunk_bytes),
     read_pages_opts},
    {"kvs_planes", &planes, sizeof planes, offsetof(kvs_planes, v), read_planes},
    {"kvs_recurrent_spec", &rec_spec, sizeof rec_spec, offsetof(kvs_recurrent_spec, undo_tokens),
     read_rec_spec},
    {"kvs_recurrent_conv_desc", &conv_desc, sizeof conv_desc,
     offsetof(kvs_recurrent_conv_desc, out_stride), read_conv_desc},
    {"kvs_recurrent_step", &rec_step, sizeof rec_step, offsetof(kvs_recurrent_step, dt_bias),
     read_rec_step},
    {"kvs_recurrent_planes", &rec_planes, sizeof rec_planes, offsetof(kvs_recurrent_planes, state),
     read_rec_planes},
    {"kvs_rect", &rect, sizeof rect, sizeof rect, read_rect},
    {"kvs_txn_opts", &txn_opts, sizeof txn_opts, sizeof(size_t), read_txn_opts},
    {"kvs_store_opts", &store_opts, sizeof store_opts, sizeof(size_t), read_store_opts},
    {"kvs_store_policy", &policy, sizeof policy, sizeof policy, read_store_policy},
    {"kvs_store_put_opts", &put_opts, sizeof put_opts, offsetof(kvs_store_put_opts, kind),
     read_put_opts},
    {"kvs_store_query", &query, sizeof query, sizeof(size_t), read_query},
    {"kvs_identity_desc", &identity_desc, sizeof identity_desc, sizeof(size_t), read_identity_desc},
    {"kvs_prefix_opts", &prefix_opts, sizeof prefix_opts, sizeof(size_t), read_prefix_opts},
    {"kvs_prefix_publish_opts", &publish_opts, sizeof publish_opts, sizeof(size_t),
     read_publish_opts},
    {"kvs_retain_opts", &retain_opts, sizeof retain_opts, sizeof(size_t), read_retain_opts},
    {"kvs_retain_item", &retain_item, sizeof retain_item, offsetof(kvs_retain_item, bytes),
     read_retain_item},
};

static void test_options(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        _Alignas(16) unsigned char buf[512] = {0};
        size_t size = options[i].size;
        assert_true(size + TAIL <= sizeof buf);
        memcpy(buf, options[i].good, size);
        assert_int_equal(options[i].call(buf, NULL), KVS_OK);
        for (size_t n = 0; n <= size + TAIL; n++) { /* zero tails, shorter structs, nonsense */
            memcpy(buf, &n, sizeof n);
            if (n < sizeof(size_t)) {
                assert_int_equal(options[i].call(buf, NULL), KVS_E_INVAL);
            } else if (n >= options[i].oldest) {
                kvs_err err = {0};
                if (options[i].call(buf, &err) != KVS_OK) {
                    fail_msg("%s of %zu bytes: %s", options[i].name, n, err.msg);
                }
            }
        }
        for (size_t at = size; at < size + TAIL; at++) {
            size_t n = size + TAIL;
            char word[32];
            kvs_err err = {0};
            memcpy(buf, &n, sizeof n);
            buf[at] = 1;
            (void)snprintf(word, sizeof word, "byte %zu ", at);
            assert_int_equal(options[i].call(buf, &err), KVS_E_UNSUPPORTED);
            assert_non_null(strstr(err.msg, options[i].name));
            assert_non_null(strstr(err.msg, word));
            n = at; /* a tail beyond struct_size is none of our business */
            memcpy(buf, &n, sizeof n);
            assert_int_equal(options[i].call(buf, NULL), KVS_OK);
            buf[at] = 0;
        }
    }
}

/* What lies beyond a shorter struct is not read: here it would be an invalid thread count. */
static void test_not_read(void **state)
{
    (void)state;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 99999;
    kvs_ctx *ctx = NULL;
    assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_E_RANGE);
    o.struct_size = offsetof(kvs_ctx_opts, n_threads);
    assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_OK);
    kvs_ctx_free(ctx);
}

static kvs_masks *the_masks;
static kvs_mask *the_mask;

static kvs_status write_ctx_stats(void *out)
{
    return kvs_ctx_get_stats(the_ctx, out);
}

static kvs_status write_masks_stats(void *out)
{
    return kvs_masks_get_stats(the_masks, out);
}

static kvs_status write_mask_shape(void *out)
{
    return kvs_mask_get_shape(the_mask, out);
}

static kvs_status write_view_info(void *out)
{
    kvs_view *view = NULL;
    assert_int_equal(kvs_view_new(the_cache, 0, &view, NULL), KVS_OK);
    kvs_status st = kvs_view_get_info(view, out);
    kvs_view_free(view);
    return st;
}

static kvs_status write_rec_stats(void *out)
{
    return kvs_recurrent_get_stats(the_recurrent, 0, out);
}

static kvs_status write_pages_stats(void *out)
{
    return kvs_pages_get_stats(the_pages, out);
}

static kvs_status write_pages_class(void *out)
{
    return kvs_pages_get_class(the_pages, 0, out);
}

static kvs_status write_txn_stats(void *out)
{
    return kvs_txn_get_stats(the_rows, out);
}

static kvs_status write_rect_mask(void *out)
{
    static int64_t pads[1];
    return kvs_rect_mask(the_rows, 0, &rect_row, 2, 1, pads, out, NULL);
}

static kvs_status write_mask_plan(void *out)
{
    return kvs_mask_plan(&mask_desc, out, NULL);
}

static kvs_status write_entry_info(void *out)
{
    return kvs_store_entry_info(the_store, the_entry, out);
}

static kvs_status write_listed(void *out)
{
    kvs_entry cursor = 0;
    return kvs_store_list(the_store, &cursor, out);
}

static kvs_status write_store_hit(void *out)
{
    return find(NULL, out, NULL);
}

static kvs_status write_verify(void *out)
{
    return kvs_store_verify(the_store, out, NULL);
}

static kvs_status write_store_stats(void *out)
{
    return kvs_store_get_stats(the_store, out);
}

static kvs_status write_prefix_hit(void *out)
{
    kvs_lease *lease = NULL;
    kvs_status st = kvs_prefix_lookup(the_index, &longer, 0, &lease, out, NULL);
    assert_int_equal(st == KVS_OK, lease != NULL);
    kvs_prefix_release(lease);
    return st;
}

static kvs_status write_prefix_stats(void *out)
{
    return kvs_prefix_get_stats(the_index, out);
}

static kvs_status write_retain_info(void *out)
{
    return kvs_retain_get_info(the_retain, the_item, out);
}

static kvs_status write_retain_stats(void *out)
{
    return kvs_retain_get_stats(the_retain, out);
}

static const struct {
    size_t size;
    write_fn call;
} results[] = {
    {sizeof(kvs_ctx_stats), write_ctx_stats},       {sizeof(kvs_masks_stats), write_masks_stats},
    {sizeof(kvs_mask_shape), write_mask_shape},     {sizeof(kvs_mask_shape), write_mask_plan},
    {sizeof(kvs_view_info), write_view_info},       {sizeof(kvs_pages_stats), write_pages_stats},
    {sizeof(kvs_pages_class), write_pages_class},   {sizeof(kvs_txn_stats), write_txn_stats},
    {sizeof(kvs_mask_desc), write_rect_mask},       {sizeof(kvs_recurrent_stats), write_rec_stats},
    {sizeof(kvs_entry_info), write_entry_info},     {sizeof(kvs_entry_info), write_listed},
    {sizeof(kvs_store_hit), write_store_hit},       {sizeof(kvs_verify_result), write_verify},
    {sizeof(kvs_store_stats), write_store_stats},   {sizeof(kvs_prefix_hit), write_prefix_hit},
    {sizeof(kvs_prefix_stats), write_prefix_stats}, {sizeof(kvs_retain_info), write_retain_info},
    {sizeof(kvs_retain_stats), write_retain_stats},
};

static void test_results(void **state)
{
    (void)state;
    assert_int_equal(kvs_masks_new(the_ctx, &the_masks, NULL), KVS_OK);
    assert_int_equal(kvs_masks_acquire(the_masks, &mask_desc, &the_mask, NULL), KVS_OK);
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        _Alignas(16) unsigned char full[512];
        size_t size = results[i].size;
        memset(full, 0xa5, sizeof full);
        memcpy(full, &size, sizeof size);
        assert_int_equal(results[i].call(full), KVS_OK);
        for (size_t n = 0; n <= size + TAIL; n++) {
            _Alignas(16) unsigned char buf[512];
            memset(buf, 0xa5, sizeof buf);
            memcpy(buf, &n, sizeof n);
            kvs_status st = results[i].call(buf);
            size_t kept = 0;
            memcpy(&kept, buf, sizeof kept);
            assert_int_equal(kept, n);
            size_t end = n < size ? n : size;
            if (n < sizeof n) {
                assert_int_equal(st, KVS_E_INVAL);
                end = sizeof n;
            } else {
                assert_int_equal(st, KVS_OK);
                assert_memory_equal(buf + sizeof n, full + sizeof n, end - sizeof n);
            }
            for (size_t at = end; at < sizeof buf; at++) {
                assert_int_equal(buf[at], 0xa5);
            }
        }
    }
    kvs_mask_release(the_mask);
    kvs_masks_free(the_masks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_not_read),
        cmocka_unit_test(test_results),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
