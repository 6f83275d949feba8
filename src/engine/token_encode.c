/* SPDX-License-Identifier: MIT */
/* token_encode.c: one call of encode: repair and escape the text, cut out the tokens that are
 * matched as they stand, hand the sections between them to the kind's own code.
 *
 * I1  What the sections hold is well-formed UTF-8 (kvs__token_list I1: cuts fall between
 *     characters).
 * I2  The caller's array is written only after everything else has succeeded.
 */
#include <string.h>

#include "engine/token.h"
#include "engine/token_pre.h"
#include "engine/token_utf8.h"

#define TEXT_MAX ((size_t)512 << 20) /* tripled by escaping, offsets still fit 32 bits */
#define FRONT    3u                  /* room for the space prefix before the text */

/* -- Buffers */

/* A larger copy, or NULL and nothing has changed. old is the size of ptr, all of it in use. */
static void *grow(kvs_ctx *ctx, void *ptr, size_t old, size_t bytes)
{
    void *p = kvs__alloc(ctx, bytes);
    if (p && ptr) {
        memcpy(p, ptr, old);
        kvs__free(ctx, ptr, old);
    }
    return p;
}

kvs_status kvs__token_push(kvs__token_work *w, int32_t id)
{
    if (!w->ids || w->n_ids == w->cap_ids) {
        const size_t need = w->cap_ids > 0 ? w->cap_ids + 1 : 256;
        int32_t *ids = kvs__grow(w->tok->ctx, w->ids, &w->cap_ids, w->n_ids, need, sizeof *ids);
        if (!ids) {
            return kvs__nomem(w->err, "engine", need * sizeof *ids);
        }
        w->ids = ids;
    }
    w->ids[w->n_ids++] = id;
    return KVS_OK;
}

/* Keeps the symbols' contents: they are filled one by one. */
kvs_status kvs__token_reserve_syms(kvs__token_work *w, size_t n)
{
    if (n <= w->cap_syms) {
        return KVS_OK;
    }
    const size_t old = w->cap_syms;
    size_t cap = old * 2 > n ? old * 2 : n;
    cap = cap < 128 ? 128 : cap;
    kvs_ctx *ctx = w->tok->ctx;
    uint64_t *heap = kvs__alloc(ctx, cap * sizeof *heap);
    kvs__sym *syms = heap ? grow(ctx, w->syms, old * sizeof *syms, cap * sizeof *syms) : NULL;
    if (!syms) {
        kvs__free(ctx, heap, cap * sizeof *heap);
        return kvs__nomem(w->err, "engine", cap * (sizeof *syms + sizeof *heap));
    }
    kvs__free(ctx, w->heap, old * sizeof *w->heap);
    w->syms = syms;
    w->heap = heap;
    w->cap_syms = cap;
    return KVS_OK;
}

static void work_free(kvs__token_work *w)
{
    kvs_ctx *ctx = w->tok->ctx;
    kvs__free(ctx, w->ids, w->cap_ids * sizeof *w->ids);
    kvs__free(ctx, w->buf, w->buf_bytes);
    kvs__free(ctx, w->syms, w->cap_syms * sizeof *w->syms);
    kvs__free(ctx, w->heap, w->cap_syms * sizeof *w->heap);
    kvs__pre_match_free(w->match);
    kvs__tj_work_free(w->tok, w->json);
}

/* -- The text */

static size_t put3(char *dst, const char *three)
{
    memcpy(dst, three, 3);
    return 3;
}

/* Repairs ill-formed parts and, for SPM, escapes spaces. Returns the bytes written, at most
 * 3 * n. */
static size_t rewrite(const char *text, size_t n, bool escape, char *dst)
{
    size_t used = 0;
    for (size_t i = 0, step = 0; i < n; i += step) {
        uint32_t cp = 0;
        if (kvs__utf8_step(text + i, n - i, &step, &cp) != KVS__UTF8_OK) {
            used += put3(dst + used, KVS__UTF8_REPLACEMENT);
        } else if (cp == ' ' && escape) {
            used += put3(dst + used, KVS__SPACE_MARK);
        } else {
            for (size_t k = 0; k < step; k++) { /* 1..4 bytes; memcpy would be a call */
                dst[used++] = text[i + k];
            }
        }
    }
    return used;
}

static size_t rewritten_max(const char *text, size_t n, bool escape)
{
    size_t extra = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)text[i];
        extra += b >= 0x80 || (b == ' ' && escape) ? 2 : 0;
    }
    return n + extra;
}

/* The text as the sections are to see it: *text is left alone, or points into w->buf. */
static kvs_status prepare(kvs__token_work *w, const char **text, size_t *n)
{
    bool spm = w->tok->kind == KVS__VOCAB_SPM;
    if (!spm && kvs__utf8_valid(*text, *n) == *n) {
        return KVS_OK;
    }
    w->buf_bytes = FRONT + rewritten_max(*text, *n, spm);
    w->buf = kvs__alloc(w->tok->ctx, w->buf_bytes);
    if (!w->buf) {
        return kvs__nomem(w->err, "engine", w->buf_bytes);
    }
    *n = rewrite(*text, *n, spm, w->buf + FRONT);
    *text = w->buf + FRONT;
    return KVS_OK;
}

static kvs_status section(kvs__token_work *w, const char *text, size_t from, size_t to)
{
    if (from == to) {
        return KVS_OK;
    }
    if (w->tok->kind == KVS__VOCAB_BPE) {
        return kvs__token_bpe_section(w, text + from, to - from);
    }
    return kvs__token_spm_section(w, w->buf + FRONT + from, to - from);
}

static kvs_status sections(kvs__token_work *w, const char *text, size_t n, uint32_t flags)
{
    const kvs__token_list *list =
        (flags & KVS_TOKENIZE_SPECIAL) != 0 ? &w->tok->user_ctl : &w->tok->user;
    size_t from = 0;
    for (size_t i = 0; list->n > 0 && i < n;) {
        unsigned char b = (unsigned char)text[i];
        size_t len = 0;
        int32_t id = -1;
        if (list->first[b] != list->first[b + 1]) {
            id = kvs__token_list_match(list, text + i, n - i, &len);
        }
        if (id < 0) {
            i++;
            continue;
        }
        kvs_status st = section(w, text, from, i);
        if (st == KVS_OK) {
            w->after_unk = false;
            st = kvs__token_push(w, id);
        }
        if (st != KVS_OK) {
            return st;
        }
        i += len;
        from = i;
    }
    return section(w, text, from, n);
}

static kvs_status encode(kvs__token_work *w, const char *text, size_t n, uint32_t flags)
{
    const kvs_tokenizer *tok = w->tok;
    const uint32_t adds = (flags & KVS_TOKENIZE_ADD_SPECIAL) != 0 ? tok->adds : 0;
    kvs_status st = prepare(w, &text, &n);
    if (st == KVS_OK && tok->kind == KVS__VOCAB_JSON) {
        return kvs__tj_encode(w, text, n, flags);
    }
    if (st == KVS_OK && (adds & 1) != 0) {
        st = kvs__token_push(w, tok->special[KVS_SPECIAL_BOS]);
    }
    if (st == KVS_OK) {
        st = sections(w, text, n, flags);
    }
    if (st == KVS_OK && (adds & 2) != 0) {
        st = kvs__token_push(w, tok->special[KVS_SPECIAL_EOS]);
    }
    return st;
}

kvs_status kvs_tokenizer_encode(const kvs_tokenizer *tok, const char *text, size_t n_bytes,
                                uint32_t flags, int32_t *out, size_t cap, size_t *n_out,
                                kvs_err *err)
{
    if (!tok || !n_out || (!text && n_bytes > 0) || (!out && cap > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "encode: NULL argument");
    }
    if ((flags & ~(uint32_t)(KVS_TOKENIZE_ADD_SPECIAL | KVS_TOKENIZE_SPECIAL)) != 0) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "encode: unknown flags 0x%x", flags);
    }
    if (n_bytes > TEXT_MAX) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "a text of %zu bytes; at most %zu", n_bytes,
                         TEXT_MAX);
    }
    kvs__token_work w = {.tok = tok, .err = err};
    kvs_status st = encode(&w, n_bytes > 0 ? text : "", n_bytes, flags);
    if (st == KVS_OK) {
        *n_out = w.n_ids;
        if (w.n_ids > cap && out) {
            st = kvs__fail(err, KVS_E_RANGE, "engine", "%zu tokens do not fit %zu", w.n_ids, cap);
        } else if (w.n_ids > 0 && out) {
            memcpy(out, w.ids, w.n_ids * sizeof *out);
        }
    }
    work_free(&w);
    return st;
}
