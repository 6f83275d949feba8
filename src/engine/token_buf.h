/* SPDX-License-Identifier: MIT */
/* token_buf.h: a text that grows. A zeroed one is empty; what it holds is no NUL-ended string. */
#ifndef KVS_ENGINE_TOKEN_BUF_H
#define KVS_ENGINE_TOKEN_BUF_H

#include "base/base.h"

typedef struct kvs__tbuf {
    char *p;
    size_t len;
    size_t cap;
} kvs__tbuf;

/* Room for n more bytes. A failing call changes nothing. */
kvs_status kvs__tbuf_room(kvs_ctx *ctx, kvs__tbuf *b, size_t n, kvs_err *err);
kvs_status kvs__tbuf_put(kvs_ctx *ctx, kvs__tbuf *b, const char *text, size_t n, kvs_err *err);
kvs_status kvs__tbuf_put_z(kvs_ctx *ctx, kvs__tbuf *b, const char *text, kvs_err *err);
kvs_status kvs__tbuf_put_cp(kvs_ctx *ctx, kvs__tbuf *b, uint32_t cp, kvs_err *err);
void kvs__tbuf_free(kvs_ctx *ctx, kvs__tbuf *b);

#endif
