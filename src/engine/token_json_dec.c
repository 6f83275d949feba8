/* SPDX-License-Identifier: MIT */
/* token_json_dec.c: decoders. What a token decodes to depends on the token alone, but for the first
 * one of a text (Metaspace) and for what is taken off the start of the whole (Strip after Fuse), so
 * it is worked out once, when the tokenizer is made.
 *
 * A decoder that works on the whole text in another way can't be streamed and is refused. Bytes of
 * byte tokens are handed out as they are; the Rust library replaces each byte of an ill-formed run
 * by U+FFFD, ours each maximal ill-formed part.
 */
#include <string.h>

#include "engine/token_json_priv.h"
#include "engine/token_utf8.h"

/* ---- reading */

static bool is_fused(const struct kvs__tj *tj)
{
    return tj->fused || (tj->n_decs > 0 && tj->decs[tj->n_decs - 1].kind == KVS__DEC_BYTE_LEVEL);
}

static kvs_status read_replace(kvs__jval node, kvs__tj_dec *d, kvs_err *err)
{
    const kvs__jval pattern = kvs__json_get(node, "pattern");
    d->pattern = kvs__tj_str(kvs__json_get(pattern, "String"));
    if (!d->pattern.ptr || d->pattern.len == 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "tokenizer.json: decoder Replace of anything but a text is not supported");
    }
    kvs_status st = kvs__tj_text(node, "content", &d->content, err);
    return st == KVS_OK && !d->content.ptr ? kvs__tj_bad("Replace without content", err) : st;
}

static kvs_status read_strip(kvs_tokenizer *tok, kvs__jval node, kvs__tj_dec *d, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    kvs__text content = {NULL, 0};
    int64_t start = 0;
    int64_t stop = 0;
    kvs_status st = kvs__tj_text(node, "content", &content, err);
    if (st != KVS_OK) {
        return st;
    }
    d->pattern = kvs__tj_mark(content);
    if (d->pattern.len == 0 || !kvs__json_whole(kvs__json_get(node, "start"), &start) ||
        !kvs__json_whole(kvs__json_get(node, "stop"), &stop) || start < 0 || stop < 0) {
        return kvs__tj_bad("malformed decoder Strip", err);
    }
    d->start = (size_t)start;
    d->stop = (size_t)stop;
    if (is_fused(tj)) {
        tj->n_decs--; /* no step of its own */
        if (stop > 0 || d->pattern.len > 1 || tj->strip_first > 0) {
            return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                             "tokenizer.json: decoder Strip of this kind after Fuse is not "
                             "supported");
        }
        tj->strip_first = d->start;
        tj->strip_char = d->pattern.ptr[0];
    }
    return KVS_OK;
}

static kvs_status read_meta(kvs__jval node, kvs__tj_dec *d, kvs_err *err)
{
    kvs__text mark = {NULL, 0};
    kvs_status st = kvs__tj_text(node, "replacement", &mark, err);
    if (st != KVS_OK) {
        return st;
    }
    d->pattern = kvs__tj_mark(mark);
    if (d->pattern.len == 0) {
        return kvs__tj_bad("Metaspace: replacement is not one character", err);
    }
    return kvs__tj_meta_scheme(node, &d->scheme, err);
}

static kvs_status read_args(kvs__jval node, kvs__tj_dec *d, kvs_err *err)
{
    switch (d->kind) {
    case KVS__DEC_REPLACE:
        return read_replace(node, d, err);
    case KVS__DEC_META:
        return read_meta(node, d, err);
    default:
        return KVS_OK;
    }
}

static kvs_status read_one(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    static const struct {
        const char *name;
        kvs__tj_dec_kind kind;
    } known[] = {{"Replace", KVS__DEC_REPLACE},
                 {"Strip", KVS__DEC_STRIP},
                 {"Metaspace", KVS__DEC_META},
                 {"ByteFallback", KVS__DEC_BYTE_FALLBACK},
                 {"ByteLevel", KVS__DEC_BYTE_LEVEL}};
    struct kvs__tj *tj = tok->json;
    const kvs__jval type = kvs__json_get(node, "type");
    if (kvs__json_is(type, "Fuse")) {
        tj->fused = true;
        return KVS_OK;
    }
    for (size_t i = 0; i < KVS_COUNT(known); i++) {
        if (!kvs__json_is(type, known[i].name)) {
            continue;
        }
        if (is_fused(tj) && known[i].kind != KVS__DEC_STRIP) {
            return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                             "tokenizer.json: decoder %s after Fuse or ByteLevel is not supported",
                             known[i].name);
        }
        if (tj->n_decs == KVS__TJ_STAGES) {
            return kvs__tj_bad("too many decoders", err);
        }
        const bool strip = known[i].kind == KVS__DEC_STRIP;
        const bool fused = is_fused(tj);
        kvs__tj_dec *d = &tj->decs[tj->n_decs++];
        *d = (kvs__tj_dec){.kind = known[i].kind};
        tj->fused = fused;
        return strip ? read_strip(tok, node, d, err) : read_args(node, d, err);
    }
    return kvs__tj_refuse("decoder", node, err);
}

/* ---- what a token decodes to */

static bool has_at(kvs__text in, size_t at, kvs__text what)
{
    return in.len - at >= what.len && memcmp(in.ptr + at, what.ptr, what.len) == 0;
}

static kvs_status substitute(kvs_ctx *ctx, kvs__text in, kvs__text from, kvs__text to,
                             kvs__tbuf *out, kvs_err *err)
{
    kvs_status st = KVS_OK;
    for (size_t i = 0; i < in.len && st == KVS_OK;) {
        if (has_at(in, i, from)) {
            st = kvs__tj_put(ctx, out, to, err);
            i += from.len;
        } else {
            st = kvs__tbuf_put(ctx, out, in.ptr + i, 1, err);
            i++;
        }
    }
    return st;
}

static kvs__text strip(kvs__text in, const kvs__tj_dec *d)
{
    const kvs__text c = d->pattern;
    for (size_t i = 0; i < d->start && in.len > 0 && has_at(in, 0, c); i++) {
        in.ptr += c.len;
        in.len -= c.len;
    }
    for (size_t i = 0; i < d->stop && in.len >= c.len && has_at(in, in.len - c.len, c); i++) {
        in.len -= c.len;
    }
    return in;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int byte_value(kvs__text t)
{
    if (t.len != 6 || memcmp(t.ptr, "<0x", 3) != 0 || t.ptr[5] != '>') {
        return -1;
    }
    const int hi = hex(t.ptr[3]);
    const int lo = hex(t.ptr[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

/* One character outside the alphabet and the whole token is taken as it is written. */
static kvs_status from_visible(kvs_ctx *ctx, kvs__text in, kvs__tbuf *out, kvs_err *err)
{
    kvs_status st = kvs__tbuf_room(ctx, out, in.len, err);
    for (size_t i = 0, step = 0; i < in.len && st == KVS_OK; i += step) {
        uint32_t cp = 0;
        (void)kvs__utf8_step(in.ptr + i, in.len - i, &step, &cp);
        const int byte = kvs__token_bpe_byte_of(cp);
        if (byte < 0) {
            out->len = 0;
            return kvs__tbuf_put(ctx, out, in.ptr, in.len, err);
        }
        out->p[out->len++] = (char)byte;
    }
    return st;
}

/* Runs the steps over *t; the result is in one of bufs, or where *t was. */
static kvs_status decode_one(kvs_tokenizer *tok, kvs__text *t, bool added, bool first,
                             kvs__tbuf bufs[2], kvs_err *err)
{
    static const kvs__text space = {" ", 1};
    static const kvs__text nothing = {"", 0};
    const struct kvs__tj *tj = tok->json;
    kvs_status st = KVS_OK;
    for (size_t i = 0; i < tj->n_decs && st == KVS_OK; i++) {
        const kvs__tj_dec *d = &tj->decs[i];
        kvs__tbuf *out = &bufs[i % 2];
        out->len = 0;
        st = kvs__tbuf_room(tok->ctx, out, t->len, err);
        const int byte = d->kind == KVS__DEC_BYTE_FALLBACK ? byte_value(*t) : -1;
        if (st == KVS_OK && byte >= 0) {
            out->p[0] = (char)byte;
            *t = (kvs__text){out->p, 1};
            return KVS_OK;
        }
        if (d->kind == KVS__DEC_STRIP) {
            *t = strip(*t, d);
            continue;
        }
        if (st != KVS_OK || d->kind == KVS__DEC_BYTE_FALLBACK ||
            (d->kind == KVS__DEC_BYTE_LEVEL && added)) {
            continue;
        }
        if (d->kind == KVS__DEC_BYTE_LEVEL) {
            st = from_visible(tok->ctx, *t, out, err);
        } else if (d->kind == KVS__DEC_META) {
            const bool drop = first && d->scheme != KVS__META_NEVER;
            st = substitute(tok->ctx, *t, d->pattern, drop ? nothing : space, out, err);
        } else {
            st = substitute(tok->ctx, *t, d->pattern, d->content, out, err);
        }
        *t = (kvs__text){out->p, out->len};
    }
    return st;
}

static kvs_status fill_pieces(kvs_tokenizer *tok, kvs__tj_pieces *p, bool first, kvs_err *err)
{
    kvs__tbuf bufs[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
    p->at = kvs__calloc(tok->ctx, tok->n_tokens + 1, sizeof *p->at);
    kvs_status st = p->at ? KVS_OK : kvs__nomem(err, "engine", (tok->n_tokens + 1) * sizeof *p->at);
    for (size_t i = 0; p->at && i < tok->n_tokens && st == KVS_OK; i++) {
        const kvs__token_entry *e = &tok->entries[i];
        kvs__text t = {e->ptr, e->len};
        const bool added = (e->attr & (KVS_TOKEN_CONTROL | KVS_TOKEN_USER)) != 0;
        st = decode_one(tok, &t, added, first, bufs, err);
        st = st == KVS_OK ? kvs__tj_put(tok->ctx, &p->pool, t, err) : st;
        p->at[i + 1] = (uint32_t)p->pool.len;
        tok->max_out = t.len > tok->max_out ? t.len : tok->max_out;
    }
    kvs__tbuf_free(tok->ctx, &bufs[0]);
    kvs__tbuf_free(tok->ctx, &bufs[1]);
    return st;
}

kvs_status kvs__tj_decoder_read(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    tj->has_decoder = !kvs__tj_absent(node);
    kvs_status st = kvs__tj_each(node, "decoders", read_one, tok, err);
    st = st == KVS_OK ? fill_pieces(tok, &tj->pieces, false, err) : st;
    bool first = false;
    for (size_t i = 0; i < tj->n_decs; i++) {
        first =
            first || (tj->decs[i].kind == KVS__DEC_META && tj->decs[i].scheme != KVS__META_NEVER);
    }
    return st == KVS_OK && first ? fill_pieces(tok, &tj->first, true, err) : st;
}

/* ---- decoding */

size_t kvs__tj_token_bytes(const kvs_tokenizer *tok, int32_t id, uint32_t flags,
                           kvs__decode_state *state, char *out)
{
    const struct kvs__tj *tj = tok->json;
    if ((tok->entries[id].attr & KVS_TOKEN_CONTROL) != 0 && (flags & KVS_TOKENIZE_SPECIAL) == 0) {
        return 0;
    }
    const kvs__tj_pieces *p = !state->started && tj->first.at ? &tj->first : &tj->pieces;
    const char *text = p->pool.p + p->at[id];
    size_t n = p->at[id + 1] - p->at[id];
    size_t used = 0;
    if (state->started && !tj->has_decoder) {
        out[used++] = ' ';
    }
    state->started = true;
    while (n > 0 && state->n_strips < tj->strip_first && !state->stripped) {
        if (*text != tj->strip_char) {
            state->stripped = true;
            break;
        }
        state->n_strips++;
        text++;
        n--;
    }
    if (n > 0) {
        memcpy(out + used, text, n);
    }
    return used + n;
}
