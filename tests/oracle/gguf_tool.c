/* SPDX-License-Identifier: MIT */
/* gguf_tool.c: lets a script ask the GGUF reader; for tests only.
 *
 *     gguf_tool dequant      stdin: u32 type, u32 blocks, the blocks, again and again;
 *                            stdout: the decoded f32 values, little-endian hosts assumed
 *     gguf_tool dump FILE    one line per key (name, type, values) and per tensor (name, type,
 *                            dimensions, offset in the file, bytes); strings in hex, floats as the
 *                            hex of their f64 bits
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"

#define BLOCKS_AT_ONCE 64u

static int dequant(void)
{
    uint32_t head[2];
    static uint8_t src[BLOCKS_AT_ONCE * 256];
    static float dst[BLOCKS_AT_ONCE * 256];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        const kvs__wtype_info *w = kvs__wtype_get(head[0]);
        if (!w) {
            (void)fprintf(stderr, "type %" PRIu32 " is unknown\n", head[0]);
            return 1;
        }
        for (uint32_t left = head[1]; left > 0;) {
            uint32_t n = left < BLOCKS_AT_ONCE ? left : BLOCKS_AT_ONCE;
            if (fread(src, w->block_bytes, n, stdin) != n) {
                return 1;
            }
            kvs__gguf_dequant(w->type, src, (size_t)n * w->block_elems, dst);
            if (fwrite(dst, sizeof *dst * w->block_elems, n, stdout) != n) {
                return 1;
            }
            left -= n;
        }
    }
    return 0;
}

static void put_str(kvs__str s)
{
    printf(" x");
    for (size_t i = 0; i < s.len; i++) {
        printf("%02x", (unsigned char)s.ptr[i]);
    }
}

static void put_real(double d)
{
    uint64_t u = 0;
    memcpy(&u, &d, sizeof u);
    printf(" %016" PRIx64, u);
}

static void put_array(const kvs__gguf_array *a)
{
    printf(" %s %zu", kvs__gguf_vtype_name(a->type), a->n);
    for (size_t i = 0; i < a->n; i++) {
        if (a->type == KVS__GGUF_STR) {
            put_str(kvs__gguf_array_str(a, i));
        } else if (a->type == KVS__GGUF_F32 || a->type == KVS__GGUF_F64) {
            put_real((double)kvs__gguf_array_f32(a, i));
        } else if (a->type == KVS__GGUF_U64) {
            printf(" %" PRIu64, (uint64_t)kvs__gguf_array_int(a, i));
        } else {
            printf(" %" PRId64, kvs__gguf_array_int(a, i));
        }
    }
}

static void put_kv(const kvs__gguf *g, const kvs__gguf_kv *kv)
{
    char key[256];
    (void)snprintf(key, sizeof key, "%.*s", (int)kv->key.len, kv->key.ptr);
    printf("kv %s %s", key, kvs__gguf_vtype_name(kv->type));
    int64_t i = 0;
    uint64_t u = 0;
    if (kv->type == KVS__GGUF_ARRAY) {
        put_array(&kv->v.a);
    } else if (kv->type == KVS__GGUF_STR) {
        put_str(kv->v.s);
    } else if (kv->type == KVS__GGUF_F32 || kv->type == KVS__GGUF_F64) {
        put_real(kv->v.f);
    } else if (kv->type == KVS__GGUF_BOOL) {
        printf(" %d", kv->v.b ? 1 : 0);
    } else if (kvs__gguf_get_i64(g, key, &i, NULL) == KVS_OK) {
        printf(" %" PRId64, i);
    } else if (kvs__gguf_get_u64(g, key, &u, NULL) == KVS_OK) {
        printf(" %" PRIu64, u);
    }
    printf("\n");
}

static int dump(const char *path)
{
    kvs_ctx *ctx = NULL;
    kvs__gguf *g = NULL;
    kvs_err err = {0};
    if (kvs_ctx_new(NULL, &ctx, &err) != KVS_OK || kvs__gguf_open(ctx, path, &g, &err) != KVS_OK) {
        (void)fprintf(stderr, "%s\n", err.msg);
        kvs_ctx_free(ctx);
        return 1;
    }
    const kvs__gguf_kv *kv = NULL;
    for (size_t i = 0; (kv = kvs__gguf_kv_at(g, i)) != NULL; i++) {
        put_kv(g, kv);
    }
    const kvs__gguf_tensor *t = NULL;
    for (size_t i = 0; (t = kvs__gguf_tensor_at(g, i)) != NULL; i++) {
        printf("tensor %.*s %s", (int)t->name.len, t->name.ptr,
               kvs__wtype_get((uint32_t)t->type)->name);
        for (uint32_t d = 0; d < t->n_dims; d++) {
            printf(" %zu", t->ne[d]);
        }
        printf(" at %zu bytes %zu\n", kvs__gguf_get_info(g).data_offset + t->offset, t->bytes);
    }
    kvs__gguf_close(g);
    kvs_ctx_free(ctx);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "dequant") == 0) {
        return dequant();
    }
    if (argc == 3 && strcmp(argv[1], "dump") == 0) {
        return dump(argv[2]);
    }
    (void)fprintf(stderr, "usage: gguf_tool dequant | dump FILE\n");
    return 2;
}
