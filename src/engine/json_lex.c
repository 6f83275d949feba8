/* SPDX-License-Identifier: MIT */
/* json_lex.c: the escapes of JSON strings. A pair of surrogates is one escape of twelve bytes; what
 * half a pair is worth, an error or U+FFFD, is the caller's to say. */
#include "engine/json_lex.h"

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Four hexadecimal digits after "\u", or -1. */
static int32_t unit(const char *s, size_t left)
{
    if (left < 6 || s[0] != '\\' || s[1] != 'u') {
        return -1;
    }
    int32_t v = 0;
    for (size_t i = 2; i < 6; i++) {
        const int d = hex_digit(s[i]);
        if (d < 0) {
            return -1;
        }
        v = v * 16 + d;
    }
    return v;
}

size_t kvs__json_escape(const char *s, size_t left, uint32_t *cp)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    const char *hit = left > 1 && s[1] ? strchr(from, s[1]) : NULL;
    if (hit) {
        *cp = (uint32_t)(unsigned char)to[hit - from];
        return 2;
    }
    const int32_t v = unit(s, left);
    if (v < 0) {
        return 0;
    }
    *cp = (uint32_t)v;
    if (v >= 0xd800 && v <= 0xdbff) {
        const int32_t low = unit(s + 6, left - 6);
        if (low >= 0xdc00 && low <= 0xdfff) {
            *cp = 0x10000u + ((uint32_t)(v - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
            return 12;
        }
    }
    return 6;
}
