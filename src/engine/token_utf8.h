/* SPDX-License-Identifier: MIT */
/* token_utf8.h: strict UTF-8 decoding, character by character.
 *
 * Ill-formed text is cut as the Unicode standard's "substitution of maximal subparts" says: the
 * longest prefix of a well-formed sequence, else one byte, counts as one error. That is what
 * lossy decoders of Python, Rust and browsers do, so a text read through them first gives the same
 * tokens.
 */
#ifndef KVS_ENGINE_TOKEN_UTF8_H
#define KVS_ENGINE_TOKEN_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define KVS__UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

typedef enum kvs__utf8 {
    KVS__UTF8_OK = 0,
    KVS__UTF8_BAD = 1, /* *len bytes are one error */
    KVS__UTF8_PART = 2 /* all n bytes begin a character that needs more */
} kvs__utf8;

/* Continuation bytes that a lead byte asks for (0: none or ill-formed), and the range of the first
 * of them, which is what excludes overlong forms, surrogates and values above U+10FFFF. */
static inline unsigned kvs__utf8_lead(unsigned char b, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (b >= 0xc2 && b <= 0xdf) {
        return 1;
    }
    if (b >= 0xe0 && b <= 0xef) {
        *lo = b == 0xe0 ? 0xa0 : 0x80;
        *hi = b == 0xed ? 0x9f : 0xbf;
        return 2;
    }
    if (b >= 0xf0 && b <= 0xf4) {
        *lo = b == 0xf0 ? 0x90 : 0x80;
        *hi = b == 0xf4 ? 0x8f : 0xbf;
        return 3;
    }
    return 0;
}

/* First character of p[0..n), n > 0. *cp is set on KVS__UTF8_OK. */
static inline kvs__utf8 kvs__utf8_step(const char *text, size_t n, size_t *len, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)text;
    *len = 1;
    if (p[0] < 0x80) {
        *cp = p[0];
        return KVS__UTF8_OK;
    }
    unsigned char lo = 0;
    unsigned char hi = 0;
    unsigned more = kvs__utf8_lead(p[0], &lo, &hi);
    if (more == 0) {
        return KVS__UTF8_BAD;
    }
    uint32_t v = p[0] & (0x3fu >> more);
    for (unsigned i = 1; i <= more; i++) {
        *len = i;
        if (i == n) {
            return KVS__UTF8_PART;
        }
        if (p[i] < lo || p[i] > hi) {
            return KVS__UTF8_BAD;
        }
        v = v << 6 | (p[i] & 0x3fu);
        lo = 0x80;
        hi = 0xbf;
    }
    *len = more + 1;
    *cp = v;
    return KVS__UTF8_OK;
}

/* Bytes of cp written to dst, which has room for 4. */
static inline size_t kvs__utf8_put(uint32_t cp, char *dst)
{
    if (cp < 0x80) {
        dst[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        dst[0] = (char)(0xc0 | cp >> 6);
        dst[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        dst[0] = (char)(0xe0 | cp >> 12);
        dst[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        dst[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    dst[0] = (char)(0xf0 | cp >> 18);
    dst[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    dst[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    dst[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

/* Length of the well-formed prefix of text[0..n). */
static inline size_t kvs__utf8_valid(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        size_t len = 0;
        uint32_t cp = 0;
        if (kvs__utf8_step(text + i, n - i, &len, &cp) != KVS__UTF8_OK) {
            break;
        }
        i += len;
    }
    return i;
}

#endif
