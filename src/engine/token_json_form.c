/* SPDX-License-Identifier: MIT */
/* token_json_form.c: the normalization forms NFC, NFD, NFKC and NFKD.
 *
 * Decomposition of a character and composition are utf8proc's. The canonical order between them is
 * made here: utf8proc's takes quadratic time in a run of combining marks, which may be as long as
 * the text.
 */
#include <string.h>
#include <utf8proc.h>

#include "engine/token_json_priv.h"
#include "engine/token_utf8.h"

#define EXPANSION_MAX 32u /* code points of one; 18 is the most in Unicode */

/* The first character that the form may change or join; everything below U+0300 is in form C. */
static bool is_plain(kvs__text in, bool compat, bool compose)
{
    const unsigned char limit = compose && !compat ? 0xcc : 0x80;
    for (size_t i = 0; i < in.len; i++) {
        if ((unsigned char)in.ptr[i] >= limit) {
            return false;
        }
    }
    return true;
}

static kvs_status grow_ints(kvs_ctx *ctx, int32_t **p, size_t *cap, size_t used, size_t need,
                            kvs_err *err)
{
    int32_t *q = kvs__grow(ctx, *p, cap, used, need, sizeof *q);
    if (!q) {
        return kvs__nomem(err, "engine", need * sizeof *q);
    }
    *p = q;
    return KVS_OK;
}

static unsigned class_of(int32_t cp)
{
    return (unsigned)utf8proc_get_property(cp)->combining_class & 255u;
}

/* Stable, by class: insertion for the usual few marks, counting for a long run. */
static kvs_status order_run(kvs_ctx *ctx, kvs__tj_work *w, int32_t *run, size_t n, kvs_err *err)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            const int32_t cp = run[i];
            size_t k = i;
            for (; k > 0 && class_of(run[k - 1]) > class_of(cp); k--) {
                run[k] = run[k - 1];
            }
            run[k] = cp;
        }
        return KVS_OK;
    }
    kvs_status st = grow_ints(ctx, &w->order, &w->cap_order, 0, n, err);
    if (st != KVS_OK) {
        return st;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) {
        start[class_of(run[i]) + 1]++;
    }
    for (unsigned c = 0; c < 256; c++) {
        start[c + 1] += start[c];
    }
    for (size_t i = 0; i < n; i++) {
        w->order[start[class_of(run[i])]++] = run[i];
    }
    memcpy(run, w->order, n * sizeof *run);
    return KVS_OK;
}

static kvs_status order(kvs_ctx *ctx, kvs__tj_work *w, size_t n, kvs_err *err)
{
    kvs_status st = KVS_OK;
    size_t from = 0;
    for (size_t i = 0; i <= n && st == KVS_OK; i++) {
        if (i == n || class_of(w->cps[i]) == 0) {
            if (i - from > 1) {
                st = order_run(ctx, w, w->cps + from, i - from, err);
            }
            from = i + 1;
        }
    }
    return st;
}

kvs_status kvs__tj_form(kvs_ctx *ctx, kvs__tj_work *w, kvs__text in, bool compat, bool compose,
                        kvs__tbuf *out, kvs_err *err)
{
    if (is_plain(in, compat, compose)) {
        return kvs__tbuf_put(ctx, out, in.ptr, in.len, err);
    }
    const utf8proc_option_t options = UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    size_t n = 0;
    for (size_t i = 0, step = 0; i < in.len; i += step) {
        uint32_t cp = 0;
        int last = 0;
        (void)kvs__utf8_step(in.ptr + i, in.len - i, &step, &cp);
        kvs_status st = grow_ints(ctx, &w->cps, &w->cap_cps, n, n + EXPANSION_MAX, err);
        if (st != KVS_OK) {
            return st;
        }
        utf8proc_ssize_t made = utf8proc_decompose_char((utf8proc_int32_t)cp, w->cps + n,
                                                        EXPANSION_MAX, options, &last);
        if (made < 0 || made > (utf8proc_ssize_t)EXPANSION_MAX) {
            return kvs__fail(err, KVS_E_INTERNAL, "engine", "U+%04X does not decompose", cp);
        }
        n += (size_t)made;
    }
    kvs_status st = order(ctx, w, n, err);
    if (st == KVS_OK && compose) {
        utf8proc_ssize_t left = utf8proc_normalize_utf32(w->cps, (utf8proc_ssize_t)n,
                                                         UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        n = left < 0 ? 0 : (size_t)left;
    }
    for (size_t i = 0; i < n && st == KVS_OK; i++) {
        st = kvs__tbuf_put_cp(ctx, out, (uint32_t)w->cps[i], err);
    }
    return st;
}
