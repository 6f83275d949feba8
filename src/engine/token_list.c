/* SPDX-License-Identifier: MIT */
/* token_list.c: the tokens that are found in a text before it is split: user-defined ones always,
 * control and unknown ones where the caller asks for it.
 *
 * The leftmost match wins, and there the longest, as Hugging Face's added tokens and
 * SentencePiece's user-defined symbols do. Items are sorted by text, and a range of them is
 * narrowed byte by byte like a walk down a trie, so a try costs at most the longest item's bytes.
 *
 * I1  Items are well-formed UTF-8 and not empty, so a match never cuts a character of
 *     well-formed text in two (the pre-tokeniser relies on it).
 * I2  SPM items are spelled as the escaped text is: U+2581 for a space.
 */
#include <string.h>

#include "engine/token.h"
#include "engine/token_utf8.h"

static int compare(const kvs__token_entry *a, const kvs__token_entry *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->ptr, b->ptr, n);
    if (c != 0) {
        return c;
    }
    if (a->len != b->len) {
        return a->len < b->len ? -1 : 1;
    }
    return a->attr < b->attr ? -1 : 1; /* the lowest id of equal texts comes first */
}

static void sift(kvs__token_entry *v, size_t n, size_t at)
{
    kvs__token_entry moving = v[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && compare(&v[child], &v[child + 1]) < 0) {
            child++;
        }
        if (compare(&moving, &v[child]) >= 0) {
            break;
        }
        v[at] = v[child];
        at = child;
    }
    v[at] = moving;
}

/* Heap sort: a list may hold every token of a hostile file, which must not take quadratic time. */
static void sort_items(kvs__token_entry *v, size_t n)
{
    for (size_t i = n / 2; i-- > 0;) {
        sift(v, n, i);
    }
    for (size_t i = n; i-- > 1;) {
        kvs__token_entry top = v[0];
        v[0] = v[i];
        v[i] = top;
        sift(v, i, 0);
    }
}

static void index_first(kvs__token_list *list)
{
    size_t i = 0;
    for (unsigned b = 0; b < 256; b++) {
        list->first[b] = (uint32_t)i;
        while (i < list->n && (unsigned char)list->items[i].ptr[0] == b) {
            i++;
        }
    }
    list->first[256] = (uint32_t)i;
}

void kvs__token_list_index(kvs__token_list *list)
{
    sort_items(list->items, list->n);
    index_first(list);
}

static bool wanted(const kvs__token_entry *e, uint32_t attrs)
{
    return (e->attr & attrs) != 0 && e->len > 0 && kvs__utf8_valid(e->ptr, e->len) == e->len;
}

static size_t count_spaces(const kvs__token_entry *e)
{
    size_t n = 0;
    for (uint32_t i = 0; i < e->len; i++) {
        n += e->ptr[i] == ' ';
    }
    return n;
}

/* Spells an item with U+2581 in pool[*used..] where it has a space. */
static void respell(kvs_tokenizer *tok, kvs__token_entry *item, size_t *used)
{
    if (count_spaces(item) == 0) {
        return;
    }
    char *start = tok->pool + *used;
    char *dst = start;
    for (uint32_t i = 0; i < item->len; i++) {
        if (item->ptr[i] == ' ') {
            for (const char *mark = KVS__SPACE_MARK; *mark; mark++) {
                *dst++ = *mark;
            }
        } else {
            *dst++ = item->ptr[i];
        }
    }
    item->ptr = start;
    item->len = (uint32_t)(dst - start);
    *used += item->len;
}

static kvs_status fill_list(kvs_tokenizer *tok, kvs__token_list *list, uint32_t attrs,
                            size_t *pool_used, kvs_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < tok->n_tokens; i++) {
        n += wanted(&tok->entries[i], attrs);
    }
    list->items = kvs__calloc(tok->ctx, n, sizeof *list->items);
    if (!list->items) {
        return kvs__nomem(err, "engine", n * sizeof *list->items);
    }
    list->n = n;
    size_t at = 0;
    for (size_t i = 0; i < tok->n_tokens; i++) {
        if (wanted(&tok->entries[i], attrs)) {
            list->items[at] = tok->entries[i];
            list->items[at].attr = (uint32_t)i;
            if (tok->kind == KVS__VOCAB_SPM) {
                respell(tok, &list->items[at], pool_used);
            }
            at++;
        }
    }
    kvs__token_list_index(list);
    return KVS_OK;
}

kvs_status kvs__token_lists_build(kvs_tokenizer *tok, kvs_err *err)
{
    const uint32_t user = KVS_TOKEN_USER;
    const uint32_t all = KVS_TOKEN_USER | KVS_TOKEN_CONTROL | KVS_TOKEN_UNKNOWN;
    size_t bytes = 0;
    for (size_t i = 0; tok->kind == KVS__VOCAB_SPM && i < tok->n_tokens; i++) {
        const kvs__token_entry *e = &tok->entries[i];
        size_t spaces = (e->attr & all) != 0 ? count_spaces(e) : 0;
        if (spaces > 0) {
            size_t lists = (e->attr & user) != 0 ? 2 : 1;
            bytes += lists * (e->len + 2 * spaces);
        }
    }
    tok->pool = kvs__alloc(tok->ctx, bytes);
    if (!tok->pool) {
        return kvs__nomem(err, "engine", bytes);
    }
    tok->pool_bytes = bytes;
    size_t used = 0;
    kvs_status st = fill_list(tok, &tok->user, user, &used, err);
    return st != KVS_OK ? st : fill_list(tok, &tok->user_ctl, all, &used, err);
}

void kvs__token_lists_free(kvs_tokenizer *tok)
{
    kvs__free(tok->ctx, tok->user.items, tok->user.n * sizeof *tok->user.items);
    kvs__free(tok->ctx, tok->user_ctl.items, tok->user_ctl.n * sizeof *tok->user_ctl.items);
    kvs__free(tok->ctx, tok->pool, tok->pool_bytes);
}

/* First item of [lo, hi) whose byte at depth is >= b; items shorter than depth + 1 are not in it
 * but for the very first ones, which sort below everything. */
static size_t lower(const kvs__token_entry *v, size_t lo, size_t hi, size_t depth, unsigned b)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (v[mid].len <= depth || (unsigned char)v[mid].ptr[depth] < b) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

kvs__list_walk kvs__token_list_start(const kvs__token_list *list, const char *text)
{
    const unsigned b = (unsigned char)text[0];
    return (kvs__list_walk){list->first[b], list->first[b + 1], 1};
}

int32_t kvs__token_list_next(const kvs__token_list *list, kvs__list_walk *walk, const char *text,
                             size_t len, size_t *match_len)
{
    const kvs__token_entry *v = list->items;
    int32_t hit = -1;
    while (walk->lo < walk->hi && hit < 0) {
        const size_t depth = walk->depth++;
        if (v[walk->lo].len == depth) { /* the range shares depth bytes; the shortest sorts first */
            hit = (int32_t)v[walk->lo].attr;
            *match_len = depth;
        }
        if (depth == len) {
            walk->hi = walk->lo;
            break;
        }
        const unsigned b = (unsigned char)text[depth];
        walk->lo = lower(v, walk->lo, walk->hi, depth, b);
        walk->hi = lower(v, walk->lo, walk->hi, depth, b + 1);
    }
    return hit;
}

int32_t kvs__token_list_match(const kvs__token_list *list, const char *text, size_t len,
                              size_t *match_len)
{
    int32_t best = -1;
    int32_t hit = -1;
    kvs__list_walk walk = kvs__token_list_start(list, text);
    while ((hit = kvs__token_list_next(list, &walk, text, len, match_len)) >= 0) {
        best = hit;
    }
    return best;
}
