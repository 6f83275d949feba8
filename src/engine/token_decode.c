/* SPDX-License-Identifier: MIT */
/* token_decode.c: ids back to bytes, at once or as a stream of whole characters.
 *
 * Stream: d->held[0..n_held) is the beginning of a character (KVS__UTF8_PART of the decoder), at
 * most 3 bytes; everything before it has been handed out. All pieces together are what a lossy
 * decoder makes of all bytes together, wherever the tokens' borders lie.
 *
 * Spaces that a model's tokenizer.json or chat interface would "clean up" before punctuation are
 * left alone: the bytes are the model's.
 */
#include <string.h>

#include "engine/token.h"
#include "engine/token_utf8.h"

struct kvs_detok {
    const kvs_tokenizer *tok;
    uint32_t flags;
    kvs__decode_state state; /* since the start */
    size_t n_held;
    char held[4];
    char *raw; /* [raw_cap] held bytes and those of one token */
    size_t raw_cap;
    char *out; /* [3 * raw_cap] repaired */
};

/* Texts of SPM spell spaces as U+2581. */
static size_t unescape(const char *text, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (len - i >= 3 && memcmp(text + i, KVS__SPACE_MARK, 3) == 0) {
            out[n++] = ' ';
            i += 3;
        } else {
            out[n++] = text[i++];
        }
    }
    return n;
}

static char byte_value(const kvs_tokenizer *tok, int32_t id)
{
    /* note_bytes checked the spelling "<0x0A>" */
    const char *digits = tok->entries[id].ptr + 3;
    int value = 0;
    for (int i = 0; i < 2; i++) {
        int c = (unsigned char)digits[i];
        value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return (char)value;
}

/* Bytes of a token, at most tok->max_out + 1. */
static size_t token_bytes(const kvs_tokenizer *tok, int32_t id, uint32_t flags,
                          kvs__decode_state *state, char *out)
{
    if (tok->kind == KVS__VOCAB_JSON) {
        return kvs__tj_token_bytes(tok, id, flags, state, out);
    }
    const kvs__token_entry *e = &tok->entries[id];
    size_t n = 0;
    if ((e->attr & (KVS_TOKEN_CONTROL | KVS_TOKEN_UNKNOWN)) != 0) {
        n = (flags & KVS_TOKENIZE_SPECIAL) != 0 ? e->len : 0;
        memcpy(out, e->ptr, n);
    } else if (tok->kind == KVS__VOCAB_SPM && (e->attr & KVS_TOKEN_BYTE) != 0) {
        out[0] = byte_value(tok, id);
        n = 1;
    } else if (tok->kind == KVS__VOCAB_SPM) {
        n = unescape(e->ptr, e->len, out);
        if (!state->started && tok->add_space_prefix && n > 0 && out[0] == ' ') {
            memmove(out, out + 1, --n);
            state->started = true;
        }
    } else if ((e->attr & KVS_TOKEN_USER) != 0) {
        n = e->len;
        memcpy(out, e->ptr, n);
    } else {
        n = kvs__token_bpe_bytes(e->ptr, e->len, out);
    }
    state->started = state->started || n > 0;
    return n;
}

static kvs_status check_ids(const kvs_tokenizer *tok, const int32_t *ids, size_t n, kvs_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= tok->n_tokens) {
            return kvs__fail(err, KVS_E_INVAL, "engine", "id %d of a vocabulary of %zu", ids[i],
                             tok->n_tokens);
        }
    }
    return KVS_OK;
}

static kvs_status check_flags(uint32_t flags, kvs_err *err)
{
    if ((flags & ~(uint32_t)KVS_TOKENIZE_SPECIAL) != 0) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "decode: unknown flags 0x%x", flags);
    }
    return KVS_OK;
}

kvs_status kvs_tokenizer_decode(const kvs_tokenizer *tok, const int32_t *ids, size_t n_ids,
                                uint32_t flags, char *out, size_t cap, size_t *n_out, kvs_err *err)
{
    if (!tok || !n_out || (!ids && n_ids > 0) || (!out && cap > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "decode: NULL argument");
    }
    kvs_status st = check_flags(flags, err);
    if (st == KVS_OK) {
        st = check_ids(tok, ids, n_ids, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    size_t scratch_bytes = tok->max_out + 1;
    char *scratch = kvs__alloc(tok->ctx, scratch_bytes);
    if (!scratch) {
        return kvs__nomem(err, "engine", scratch_bytes);
    }
    size_t total = 0;
    for (unsigned pass = 0; pass < 2; pass++) { /* count, then write: nothing is written in vain */
        kvs__decode_state state = {0};
        size_t at = 0;
        for (size_t i = 0; i < n_ids; i++) {
            size_t n = token_bytes(tok, ids[i], flags, &state, scratch);
            if (pass == 1) {
                memcpy(out + at, scratch, n);
            }
            at += n;
        }
        total = at;
        if (total > cap || total == 0) {
            break;
        }
    }
    kvs__free(tok->ctx, scratch, scratch_bytes);
    *n_out = total;
    if (total > cap && out) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "%zu bytes do not fit %zu", total, cap);
    }
    return KVS_OK;
}

/* -- Stream */

kvs_status kvs_detok_new(const kvs_tokenizer *tok, uint32_t flags, kvs_detok **out, kvs_err *err)
{
    if (!tok || !out) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "detok_new: NULL argument");
    }
    kvs_status st = check_flags(flags, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs_detok *d = kvs__calloc(tok->ctx, 1, sizeof *d);
    if (!d) {
        return kvs__nomem(err, "engine", sizeof *d);
    }
    d->tok = tok;
    d->flags = flags;
    d->raw_cap = tok->max_out + 1 + sizeof d->held;
    d->raw = kvs__alloc(tok->ctx, d->raw_cap);
    d->out = kvs__alloc(tok->ctx, 3 * d->raw_cap);
    if (!d->raw || !d->out) {
        kvs_detok_free(d);
        return kvs__nomem(err, "engine", 4 * (tok->max_out + 5));
    }
    *out = d;
    return KVS_OK;
}

void kvs_detok_free(kvs_detok *d)
{
    if (!d) {
        return;
    }
    kvs_ctx *ctx = d->tok->ctx;
    kvs__free(ctx, d->raw, d->raw_cap);
    kvs__free(ctx, d->out, 3 * d->raw_cap);
    kvs__free(ctx, d, sizeof *d);
}

kvs_status kvs_detok_put(kvs_detok *d, int32_t id, const char **text, size_t *n_bytes, kvs_err *err)
{
    if (!d || !text || !n_bytes) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "detok_put: NULL argument");
    }
    kvs_status st = check_ids(d->tok, &id, 1, err);
    if (st != KVS_OK) {
        return st;
    }
    memcpy(d->raw, d->held, d->n_held);
    size_t n = d->n_held + token_bytes(d->tok, id, d->flags, &d->state, d->raw + d->n_held);
    d->n_held = 0;
    size_t used = 0;
    for (size_t i = 0, step = 0; i < n; i += step) {
        uint32_t cp = 0;
        kvs__utf8 what = kvs__utf8_step(d->raw + i, n - i, &step, &cp);
        if (what == KVS__UTF8_PART) {
            memcpy(d->held, d->raw + i, step);
            d->n_held = step;
        } else if (what == KVS__UTF8_BAD) {
            memcpy(d->out + used, KVS__UTF8_REPLACEMENT, 3);
            used += 3;
        } else {
            memcpy(d->out + used, d->raw + i, step);
            used += step;
        }
    }
    *text = d->out;
    *n_bytes = used;
    return KVS_OK;
}

void kvs_detok_finish(kvs_detok *d, const char **text, size_t *n_bytes)
{
    if (!d || !text || !n_bytes) {
        return;
    }
    size_t n = d->n_held > 0 ? 3 : 0;
    memcpy(d->out, KVS__UTF8_REPLACEMENT, n);
    d->n_held = 0;
    d->state = (kvs__decode_state){0};
    *text = d->out;
    *n_bytes = n;
}
