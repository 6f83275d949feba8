/* SPDX-License-Identifier: MIT */
/* jinja_chars.c: characters: space, case, what repr() prints; as Python has them. The tables are
 * those of one Unicode version, newer characters have no case here. */
#include "engine/jinja.h"

typedef struct case_range {
    uint32_t lo, hi; /* every step-th of them */
    uint32_t step;
    int32_t delta;
} case_range;

typedef struct case_special {
    uint32_t cp;
    uint32_t to[3];
} case_special;

typedef struct span {
    uint32_t lo, hi;
} span;

#include "engine/jinja_unicode.inc"

uint32_t kvs__jnext(const char *text, size_t *i)
{
    const unsigned char *p = (const unsigned char *)text + *i;
    if (p[0] < 0x80) {
        *i += 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *i += 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *i += 3;
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *i += 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

size_t kvs__jprev(const char *p, size_t i)
{
    do {
        i--;
    } while (((unsigned char)p[i] & 0xc0) == 0x80);
    return i;
}

size_t kvs__jbyte(const kvs__jstr *s, size_t i_char)
{
    if (s->n == s->n_chars) {
        return i_char;
    }
    size_t i = 0;
    for (; i_char > 0; i_char--) {
        (void)kvs__jnext(s->p, &i);
    }
    return i;
}

bool kvs__jspace(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static bool in_spans(const span *s, size_t n, uint32_t cp)
{
    size_t lo = 0;
    for (size_t hi = n; lo < hi;) {
        size_t mid = (lo + hi) / 2;
        if (s[mid].hi < cp) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && s[lo].lo <= cp;
}

bool kvs__jprintable(uint32_t cp)
{
    if (cp < 0x80) {
        return cp >= 0x20 && cp < 0x7f;
    }
    return !in_spans(unprintable_spans, KVS_COUNT(unprintable_spans), cp);
}

static unsigned ascii_case(uint32_t cp, kvs__jcase to, uint32_t out[3])
{
    bool lower = cp >= 'a' && cp <= 'z';
    bool upper = cp >= 'A' && cp <= 'Z';
    out[0] = to == J_LOWER ? (upper ? cp + 32 : cp) : lower ? cp - 32 : cp;
    return 1;
}

unsigned kvs__jmap_case(uint32_t cp, kvs__jcase to, uint32_t out[3])
{
    static const struct {
        const case_range *r;
        size_t n;
        const case_special *s;
        size_t n_special;
    } tables[] = {{upper_ranges, KVS_COUNT(upper_ranges), upper_special, KVS_COUNT(upper_special)},
                  {lower_ranges, KVS_COUNT(lower_ranges), lower_special, KVS_COUNT(lower_special)},
                  {title_ranges, KVS_COUNT(title_ranges), title_special, KVS_COUNT(title_special)}};
    if (cp < 0x80) {
        return ascii_case(cp, to, out);
    }
    for (size_t i = 0; i < tables[to].n_special; i++) {
        const case_special *s = &tables[to].s[i];
        if (s->cp == cp) {
            memcpy(out, s->to, sizeof s->to);
            return out[2] != 0 ? 3 : 2;
        }
    }
    out[0] = cp;
    for (size_t i = 0; i < tables[to].n && tables[to].r[i].lo <= cp; i++) {
        const case_range *r = &tables[to].r[i];
        if (cp <= r->hi && (cp - r->lo) % r->step == 0) {
            out[0] = (uint32_t)((int32_t)cp + r->delta);
            break;
        }
    }
    return 1;
}

unsigned kvs__jclass(uint32_t cp)
{
    if (cp >= '0' && cp <= '9') {
        return J_CLASS_DIGIT;
    }
    if (cp >= 'a' && cp <= 'z') {
        return J_CLASS_LOWER | J_CLASS_ALPHA;
    }
    if (cp >= 'A' && cp <= 'Z') {
        return J_CLASS_UPPER | J_CLASS_ALPHA;
    }
    if (cp < 0x80 || !in_spans(cased_spans, KVS_COUNT(cased_spans), cp)) {
        return 0;
    }
    uint32_t other[3];
    (void)kvs__jmap_case(cp, J_LOWER, other);
    return other[0] != cp ? J_CLASS_UPPER : J_CLASS_LOWER;
}
