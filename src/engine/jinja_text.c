/* SPDX-License-Identifier: MIT */
/* jinja_text.c: what filters and methods do to strings. Parts of the source keep the spans that
 * came from input; a changed case makes the whole text input where any of it was. */
#include "engine/jinja.h"

int64_t kvs__jfind(kvs__jheap *h, const kvs__jstr *s, size_t from, size_t to, const kvs__jstr *what,
                   bool last)
{
    if (from > to || what->n > to - from) {
        return -1;
    }
    size_t most = to - from - what->n;
    for (size_t k = 0; k <= most; k++) {
        size_t i = from + (last ? most - k : k);
        if (!last && what->n > 0) {
            const char *p = memchr(s->p + i, what->p[0], from + most + 1 - i);
            size_t next = p ? (size_t)(p - s->p) : from + most + 1;
            kvs__jstep(h, (next - i) / 64);
            k += next - i;
            i = next;
            if (!p) {
                break;
            }
        }
        size_t same = 0;
        while (same < what->n && s->p[i + same] == what->p[same]) {
            same++;
        }
        kvs__jstep(h, same / 64 + (k % 16 == 0));
        if (same == what->n) {
            return (int64_t)i;
        }
    }
    return -1;
}

static bool in_set(const kvs__jstr *chars, uint32_t cp)
{
    if (!chars) {
        return kvs__jspace(cp);
    }
    for (size_t i = 0; i < chars->n;) {
        if (kvs__jnext(chars->p, &i) == cp) {
            return true;
        }
    }
    return false;
}

kvs__val kvs__jstrip(kvs__jheap *h, const kvs__jstr *s, const kvs__jstr *chars, bool left,
                     bool right)
{
    size_t from = 0;
    size_t to = s->n;
    size_t cost = chars ? chars->n / 16 + 1 : 1;
    while (left && from < to) {
        size_t i = from;
        if (!in_set(chars, kvs__jnext(s->p, &i))) {
            break;
        }
        kvs__jstep(h, cost);
        from = i;
    }
    while (right && to > from) {
        size_t i = kvs__jprev(s->p, to);
        size_t k = i;
        if (!in_set(chars, kvs__jnext(s->p, &k))) {
            break;
        }
        kvs__jstep(h, cost);
        to = i;
    }
    return kvs__jsub(h, s, from, to);
}

kvs__val kvs__jreplace(kvs__jheap *h, const kvs__jstr *s, const kvs__jstr *old, const kvs__jstr *by,
                       int64_t count)
{
    kvs__jsb b = {.h = h};
    size_t i = 0;
    int64_t done = 0;
    while (count < 0 || done < count) {
        kvs__jstep(h, 1);
        if (old->n == 0) { /* before every character and at the end */
            kvs__jsb_str(&b, by, 0, by->n);
            done++;
            if (i == s->n) {
                break;
            }
            size_t k = i;
            (void)kvs__jnext(s->p, &k);
            kvs__jsb_str(&b, s, i, k);
            i = k;
            continue;
        }
        int64_t at = kvs__jfind(h, s, i, s->n, old, false);
        if (at < 0) {
            break;
        }
        kvs__jsb_str(&b, s, i, (size_t)at);
        kvs__jsb_str(&b, by, 0, by->n);
        i = (size_t)at + old->n;
        done++;
    }
    kvs__jsb_str(&b, s, i, s->n);
    return kvs__jsb_done(&b);
}

/* ---- splitting */

static size_t skip(const kvs__jstr *s, size_t i, bool space)
{
    while (i < s->n) {
        size_t k = i;
        if (kvs__jspace(kvs__jnext(s->p, &k)) != space) {
            break;
        }
        i = k;
    }
    return i;
}

static size_t skip_back(const kvs__jstr *s, size_t i, bool space)
{
    while (i > 0) {
        size_t k = kvs__jprev(s->p, i);
        size_t j = k;
        if (kvs__jspace(kvs__jnext(s->p, &j)) != space) {
            break;
        }
        i = k;
    }
    return i;
}

static void check_separator(kvs__jheap *h, const kvs__jstr *sep)
{
    if (sep && sep->n == 0) {
        kvs__jfail(h, KVS_E_FORMAT, "split: an empty separator");
    }
}

kvs__jlist *kvs__jsplit(kvs__jheap *h, const kvs__jstr *s, const kvs__jstr *sep, int64_t most)
{
    kvs__jlist *l = kvs__jlist_new(h, J_KIND_LIST);
    size_t i = 0;
    check_separator(h, sep);
    kvs__jstep(h, s->n / 16);
    if (!sep) {
        for (i = skip(s, 0, true); i < s->n; i = skip(s, i, true)) {
            if (most >= 0 && (int64_t)l->n == most) {
                kvs__jlist_add(h, l, kvs__jsub(h, s, i, skip_back(s, s->n, true)));
                return l;
            }
            size_t end = skip(s, i, false);
            kvs__jlist_add(h, l, kvs__jsub(h, s, i, end));
            i = end;
        }
        return l;
    }
    while (most < 0 || (int64_t)l->n < most) {
        int64_t at = kvs__jfind(h, s, i, s->n, sep, false);
        if (at < 0) {
            break;
        }
        kvs__jlist_add(h, l, kvs__jsub(h, s, i, (size_t)at));
        i = (size_t)at + sep->n;
    }
    kvs__jlist_add(h, l, kvs__jsub(h, s, i, s->n));
    return l;
}

static void reverse(kvs__jlist *l)
{
    for (size_t i = 0; i + 1 < l->n - i; i++) {
        kvs__val t = l->at[i];
        l->at[i] = l->at[l->n - 1 - i];
        l->at[l->n - 1 - i] = t;
    }
}

kvs__jlist *kvs__jrsplit(kvs__jheap *h, const kvs__jstr *s, const kvs__jstr *sep, int64_t most)
{
    kvs__jlist *l = kvs__jlist_new(h, J_KIND_LIST);
    size_t to = s->n;
    check_separator(h, sep);
    kvs__jstep(h, s->n / 16);
    if (!sep) {
        for (to = skip_back(s, to, true); to > 0; to = skip_back(s, to, true)) {
            size_t from = skip_back(s, to, false);
            if (most >= 0 && (int64_t)l->n == most) {
                from = 0; /* what is left keeps its space in front */
            }
            kvs__jlist_add(h, l, kvs__jsub(h, s, from, to));
            if (most >= 0 && (int64_t)l->n > most) {
                break;
            }
            to = from;
        }
    } else {
        while (most < 0 || (int64_t)l->n < most) {
            int64_t at = kvs__jfind(h, s, 0, to, sep, true);
            if (at < 0) {
                break;
            }
            kvs__jlist_add(h, l, kvs__jsub(h, s, (size_t)at + sep->n, to));
            to = (size_t)at;
        }
        kvs__jlist_add(h, l, kvs__jsub(h, s, 0, to));
    }
    if (l->n > 0) {
        reverse(l);
    }
    return l;
}

static bool ends_line(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

kvs__jlist *kvs__jlines(kvs__jheap *h, const kvs__jstr *s, bool keep)
{
    kvs__jlist *l = kvs__jlist_new(h, J_KIND_LIST);
    size_t from = 0;
    kvs__jstep(h, s->n / 16);
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        if (!ends_line(kvs__jnext(s->p, &i))) {
            continue;
        }
        i += s->p[at] == '\r' && i < s->n && s->p[i] == '\n';
        kvs__jlist_add(h, l, kvs__jsub(h, s, from, keep ? i : at));
        from = i;
    }
    if (from < s->n) {
        kvs__jlist_add(h, l, kvs__jsub(h, s, from, s->n));
    }
    return l;
}

/* ---- case */

static bool cased_before(const kvs__jstr *s, size_t i)
{
    if (i == 0) {
        return false;
    }
    size_t k = kvs__jprev(s->p, i);
    return kvs__jclass(kvs__jnext(s->p, &k)) != 0 && (unsigned char)s->p[i - 1] > '9';
}

static void put_case(kvs__jsb *b, const kvs__jstr *s, size_t *i, kvs__jcase to)
{
    uint32_t out[3];
    size_t at = *i;
    uint32_t cp = kvs__jnext(s->p, i);
    kvs__jstep(b->h, cp < 0x80 ? 0 : 4);
    if (cp == 0x3a3 && to == J_LOWER) { /* a sigma that ends a word */
        size_t k = *i;
        bool more = k < s->n && (kvs__jclass(kvs__jnext(s->p, &k)) & ~(unsigned)J_CLASS_DIGIT);
        kvs__jsb_cp(b, cased_before(s, at) && !more ? 0x3c2 : 0x3c3);
        return;
    }
    unsigned n = kvs__jmap_case(cp, to, out);
    for (unsigned k = 0; k < n; k++) {
        kvs__jsb_cp(b, out[k]);
    }
}

static kvs__val cased(kvs__jsb *b, const kvs__jstr *s)
{
    if (kvs__jsub_input(s)) {
        kvs__jsb_input(b, 0);
    }
    return kvs__jsb_done(b);
}

kvs__val kvs__jcased(kvs__jheap *h, const kvs__jstr *s, kvs__jcase to)
{
    kvs__jsb b = {.h = h};
    kvs__jstep(h, s->n / 8);
    for (size_t i = 0; i < s->n;) {
        put_case(&b, s, &i, to);
    }
    return cased(&b, s);
}

kvs__val kvs__jcapitalize(kvs__jheap *h, const kvs__jstr *s)
{
    kvs__jsb b = {.h = h};
    kvs__jstep(h, s->n / 8);
    for (size_t i = 0; i < s->n;) {
        put_case(&b, s, &i, i == 0 ? J_TITLE : J_LOWER);
    }
    return cased(&b, s);
}

kvs__val kvs__jtitle_method(kvs__jheap *h, const kvs__jstr *s)
{
    kvs__jsb b = {.h = h};
    bool inside = false;
    kvs__jstep(h, s->n / 8);
    for (size_t i = 0; i < s->n;) {
        size_t k = i;
        unsigned c = kvs__jclass(kvs__jnext(s->p, &k));
        put_case(&b, s, &i, inside ? J_LOWER : J_TITLE);
        inside = (c & ~(unsigned)J_CLASS_DIGIT) != 0;
    }
    return cased(&b, s);
}

/* jinja2's: words begin after - ( { [ < and space. Letters there are upper, not title case. */
kvs__val kvs__jtitle_filter(kvs__jheap *h, const kvs__jstr *s)
{
    kvs__jsb b = {.h = h};
    bool inside = false;
    kvs__jstep(h, s->n / 8);
    for (size_t i = 0; i < s->n;) {
        size_t k = i;
        uint32_t cp = kvs__jnext(s->p, &k);
        bool seam = kvs__jspace(cp) || (cp < 0x80 && cp > 0 && strchr("-({[<", (int)cp));
        put_case(&b, s, &i, inside ? J_LOWER : J_UPPER);
        inside = !seam;
    }
    return cased(&b, s);
}
