/* SPDX-License-Identifier: MIT */
/* token_buf.c: see token_buf.h. Doubles, so that n single puts cost O(n). */
#include "engine/token_buf.h"

#include <string.h>

#include "engine/token_utf8.h"

kvs_status kvs__tbuf_room(kvs_ctx *ctx, kvs__tbuf *b, size_t n, kvs_err *err)
{
    size_t need = 0;
    if (!kvs__add_size(b->len, n, &need) || need > SIZE_MAX / 2) {
        return kvs__nomem(err, "engine", SIZE_MAX);
    }
    char *p = kvs__grow(ctx, b->p, &b->cap, b->len, need, 1);
    if (!p) {
        return kvs__nomem(err, "engine", need);
    }
    b->p = p;
    return KVS_OK;
}

kvs_status kvs__tbuf_put(kvs_ctx *ctx, kvs__tbuf *b, const char *text, size_t n, kvs_err *err)
{
    kvs_status st = kvs__tbuf_room(ctx, b, n, err);
    if (st == KVS_OK && n > 0) {
        memcpy(b->p + b->len, text, n);
        b->len += n;
    }
    return st;
}

kvs_status kvs__tbuf_put_z(kvs_ctx *ctx, kvs__tbuf *b, const char *text, kvs_err *err)
{
    return kvs__tbuf_put(ctx, b, text, strlen(text), err);
}

kvs_status kvs__tbuf_put_cp(kvs_ctx *ctx, kvs__tbuf *b, uint32_t cp, kvs_err *err)
{
    char text[4];
    return kvs__tbuf_put(ctx, b, text, kvs__utf8_put(cp, text), err);
}

void kvs__tbuf_free(kvs_ctx *ctx, kvs__tbuf *b)
{
    kvs__free(ctx, b->p, b->cap);
    *b = (kvs__tbuf){NULL, 0, 0};
}
