/* SPDX-License-Identifier: MIT */
/* token_json_map.c: SentencePiece's precompiled character map: a double-array trie from texts to
 * what replaces them.
 *
 * After base64: u32 bytes of the trie, its u32 units (all little-endian), then the replacements,
 * each ended by a NUL. The map is applied as the Rust library does it, which differs from
 * SentencePiece: to each grapheme cluster below six bytes as a whole, where the shortest entry that
 * starts it stands for all of it, and else to each character.
 *
 * Every unit of the trie is looked up with its index checked: the file may be anything.
 */
#include <string.h>
#include <utf8proc.h>

#include "engine/token_json_priv.h"
#include "engine/token_utf8.h"

static int digit_of(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *hit = c != '\0' ? strchr(digits, c) : NULL;
    return hit ? (int)(hit - digits) : -1;
}

/* Returns the bytes written, at most 3 for each 4 digits, or SIZE_MAX. */
static size_t decode64(kvs__text in, unsigned char *out)
{
    size_t n = 0;
    uint32_t acc = 0;
    unsigned bits = 0;
    while (in.len > 0 && in.ptr[in.len - 1] == '=') {
        in.len--;
    }
    int table[256];
    for (unsigned i = 0; i < 256; i++) {
        table[i] = digit_of((char)i);
    }
    for (size_t i = 0; i < in.len; i++) {
        int d = table[(unsigned char)in.ptr[i]];
        if (d < 0) {
            return SIZE_MAX;
        }
        acc = (acc << 6 | (uint32_t)d) & 0xffffffu;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[n++] = (unsigned char)(acc >> bits);
        }
    }
    return n;
}

static uint32_t le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

kvs_status kvs__tj_charsmap_read(kvs_ctx *ctx, kvs__text base64, kvs__tj_norm *n, kvs_err *err)
{
    /* The trie is moved to the front, where it is aligned. */
    n->block_bytes = base64.len / 4 * 3 + 8;
    unsigned char *block = kvs__alloc(ctx, n->block_bytes);
    if (!block) {
        return kvs__nomem(err, "engine", n->block_bytes);
    }
    n->trie = (uint32_t *)(void *)block;
    const size_t got = decode64(base64, block);
    const size_t trie = got != SIZE_MAX && got >= 4 ? le32(block) : SIZE_MAX;
    if (trie == SIZE_MAX || trie % 4 != 0 || trie > got - 4) {
        return kvs__tj_bad("precompiled_charsmap is malformed", err);
    }
    n->n_trie = trie / 4;
    n->n_texts = got - 4 - trie;
    for (size_t i = 0; i < n->n_trie; i++) {
        n->trie[i] = le32(block + 4 + 4 * i);
    }
    n->texts = (const char *)block + 4 + trie;
    if (kvs__utf8_valid(n->texts, n->n_texts) != n->n_texts) {
        return kvs__tj_bad("precompiled_charsmap holds ill-formed UTF-8", err);
    }
    return KVS_OK;
}

static uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & 0x200u) >> 6);
}

/* What the shortest entry that starts text is replaced by; a NULL pointer: there is none. */
static kvs__text look_up(const kvs__tj_norm *n, const char *text, size_t len)
{
    const kvs__text none = {NULL, 0};
    size_t at = 0;
    if (n->n_trie == 0) {
        return none;
    }
    at ^= offset_of(n->trie[0]);
    for (size_t i = 0; i < len && text[i] != '\0'; i++) {
        const unsigned char c = (unsigned char)text[i];
        at ^= c;
        if (at >= n->n_trie || (n->trie[at] & 0x800000ffu) != c) {
            return none;
        }
        const uint32_t unit = n->trie[at];
        at ^= offset_of(unit);
        if ((unit >> 8 & 1) != 0) {
            size_t from = at < n->n_trie ? n->trie[at] & 0x7fffffffu : n->n_texts;
            if (from >= n->n_texts || ((unsigned char)n->texts[from] & 0xc0) == 0x80) {
                return none;
            }
            const char *end = memchr(n->texts + from, 0, n->n_texts - from);
            return (kvs__text){n->texts + from,
                               end ? (size_t)(end - n->texts) - from : n->n_texts - from};
        }
    }
    return none;
}

static kvs_status put_mapped(kvs_ctx *ctx, kvs__text to, kvs__tbuf *out, bool *at_start,
                             kvs_err *err)
{
    *at_start = *at_start && (to.len > 0 || out->len > 0);
    return kvs__tj_put(ctx, out, to, err);
}

static kvs_status put_cluster(kvs_ctx *ctx, const kvs__tj_norm *n, kvs__text cluster,
                              kvs__tbuf *out, bool *at_start, kvs_err *err)
{
    kvs__text to = {NULL, 0};
    if (cluster.len < 6) {
        to = look_up(n, cluster.ptr, cluster.len);
    }
    if (to.ptr) {
        return put_mapped(ctx, to, out, at_start, err);
    }
    kvs_status st = KVS_OK;
    for (size_t i = 0, step = 0; i < cluster.len && st == KVS_OK; i += step) {
        uint32_t cp = 0;
        (void)kvs__utf8_step(cluster.ptr + i, cluster.len - i, &step, &cp);
        to = look_up(n, cluster.ptr + i, step);
        st = to.ptr ? put_mapped(ctx, to, out, at_start, err)
                    : kvs__tbuf_put(ctx, out, cluster.ptr + i, step, err);
    }
    return st;
}

kvs_status kvs__tj_charsmap(kvs_ctx *ctx, const kvs__tj_norm *n, kvs__text in, kvs__tbuf *out,
                            bool *at_start, kvs_err *err)
{
    kvs_status st = KVS_OK;
    size_t from = 0;
    uint32_t before = 0;
    utf8proc_int32_t state = 0;
    for (size_t i = 0, step = 0; i < in.len && st == KVS_OK; i += step) {
        uint32_t cp = 0;
        (void)kvs__utf8_step(in.ptr + i, in.len - i, &step, &cp);
        if (i > 0 && utf8proc_grapheme_break_stateful((utf8proc_int32_t)before,
                                                      (utf8proc_int32_t)cp, &state)) {
            st = put_cluster(ctx, n, (kvs__text){in.ptr + from, i - from}, out, at_start, err);
            from = i;
        }
        before = cp;
    }
    if (st == KVS_OK && in.len > from) {
        st = put_cluster(ctx, n, (kvs__text){in.ptr + from, in.len - from}, out, at_start, err);
    }
    return st;
}
