/* SPDX-License-Identifier: MIT */
/* token_json_model.c: one piece of text to ids, by merging (BPE) or by the best path (Unigram).
 *
 * Unigram: node k holds the best score of the text up to byte k and the token that ends there. Sums
 * are of doubles from left to right and only a better sum replaces one, as in the Rust library, so
 * ties fall the same way. Where no word reaches over a place, every path goes through it; a long
 * text is written out up to there, so that the nodes stay few.
 */
#include <string.h>

#include "engine/token_json_priv.h"
#include "engine/token_utf8.h"

#define CUT_FROM   64u    /* bytes of a word from which cutting it pays */
#define FLUSH_FROM 32768u /* nodes */

static int32_t find(const kvs_tokenizer *tok, kvs__text t)
{
    int32_t id = t.len <= tok->max_len ? kvs__token_map_find(tok, t.ptr, t.len) : -1;
    return id >= 0 && (tok->entries[id].attr & KVS_TOKEN_CONTROL) == 0 ? id : -1;
}

static bool has_bytes(const kvs_tokenizer *tok, kvs__text t)
{
    for (size_t i = 0; i < t.len; i++) {
        if (tok->byte_id[(unsigned char)t.ptr[i]] < 0) {
            return false;
        }
    }
    return tok->json->byte_fallback;
}

/* ---- BPE */

struct bpe {
    kvs__token_work *w;
    size_t n;        /* symbols */
    uint32_t before; /* the last character of the vocabulary */
    bool cuts;
    bool pending; /* an unknown character is not written yet */
};

static kvs_status add_sym(struct bpe *b, int32_t id)
{
    kvs_status st = kvs__token_reserve_syms(b->w, b->n + 1);
    if (st == KVS_OK) {
        kvs__sym *s = &b->w->syms[b->n];
        s->at = (uint32_t)b->n;
        s->len = 1;
        s->id = id;
        b->n++;
    }
    return st;
}

static kvs_status merge(struct bpe *b)
{
    kvs__token_work *w = b->w;
    if (b->n == 0) {
        return KVS_OK;
    }
    kvs__token_merge(w->tok, NULL, w->syms, w->heap, b->n, kvs__token_bpe_rank);
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; i != UINT32_MAX && st == KVS_OK; i = w->syms[i].next) {
        st = kvs__token_push(w, w->syms[i].id);
    }
    b->n = 0;
    return st;
}

/* A character as it is looked up, with what marks its place in the word. */
static kvs_status decorate(struct bpe *b, kvs__text *c, bool first, bool last)
{
    const struct kvs__tj *tj = b->w->tok->json;
    const kvs__text pre = first ? (kvs__text){"", 0} : tj->prefix;
    const kvs__text post = last ? tj->suffix : (kvs__text){"", 0};
    if (pre.len == 0 && post.len == 0) {
        return KVS_OK;
    }
    kvs_ctx *ctx = b->w->tok->ctx;
    kvs__tbuf *word = &b->w->json->word;
    word->len = 0;
    kvs_status st = kvs__tbuf_put(ctx, word, pre.ptr, pre.len, b->w->err);
    st = st == KVS_OK ? kvs__tbuf_put(ctx, word, c->ptr, c->len, b->w->err) : st;
    st = st == KVS_OK ? kvs__tbuf_put(ctx, word, post.ptr, post.len, b->w->err) : st;
    *c = (kvs__text){word->p, word->len};
    return st;
}

/* Byte tokens come before an unknown character that still waits, as in the Rust library. */
static kvs_status add_missing(struct bpe *b, kvs__text c)
{
    const kvs_tokenizer *tok = b->w->tok;
    kvs_status st = KVS_OK;
    if (has_bytes(tok, c)) {
        for (size_t i = 0; i < c.len && st == KVS_OK; i++) {
            st = add_sym(b, tok->byte_id[(unsigned char)c.ptr[i]]);
        }
        return st;
    }
    if (tok->json->unk >= 0) {
        if (b->pending && !tok->json->fuse_unk) {
            st = add_sym(b, tok->json->unk);
        }
        b->pending = true;
    }
    return st;
}

static kvs_status add_char(struct bpe *b, kvs__text c, uint32_t cp, bool first, bool last)
{
    const struct kvs__tj *tj = b->w->tok->json;
    int32_t id = -1;
    kvs_status st = KVS_OK;
    if (cp < KVS_COUNT(tj->cp_id) && tj->prefix.len == 0 && tj->suffix.len == 0) {
        id = tj->cp_id[cp];
    } else {
        st = decorate(b, &c, first, last);
        id = st == KVS_OK ? find(b->w->tok, c) : -1;
    }
    if (st != KVS_OK || id < 0) {
        return st != KVS_OK ? st : add_missing(b, c);
    }
    /* A character that is in no token and has no id leaves its neighbours side by side. */
    if (b->cuts && b->n > 0 && !b->pending &&
        !kvs__token_are_neighbours(b->w->tok, b->before, cp)) {
        st = merge(b);
    }
    b->before = cp;
    if (b->pending && st == KVS_OK) {
        b->pending = false;
        st = add_sym(b, tj->unk);
    }
    return st == KVS_OK ? add_sym(b, id) : st;
}

kvs_status kvs__tj_bpe(kvs__token_work *w, kvs__text word)
{
    const kvs_tokenizer *tok = w->tok;
    const struct kvs__tj *tj = tok->json;
    if (tj->ignore_merges) {
        const int32_t id = find(tok, word);
        if (id >= 0) {
            return kvs__token_push(w, id);
        }
    }
    struct bpe b = {.w = w, .cuts = word.len >= CUT_FROM && !tj->no_cuts};
    kvs_status st = KVS_OK;
    for (size_t i = 0, step = 0; i < word.len && st == KVS_OK; i += step) {
        uint32_t cp = 0;
        (void)kvs__utf8_step(word.ptr + i, word.len - i, &step, &cp);
        const kvs__text c = {word.ptr + i, step};
        st = add_char(&b, c, cp, i == 0, i + step == word.len);
    }
    if (st == KVS_OK && b.pending) {
        st = add_sym(&b, tj->unk);
    }
    return st == KVS_OK ? merge(&b) : st;
}

/* ---- Unigram */

static kvs_status reserve_nodes(kvs__token_work *w, size_t n, size_t used)
{
    kvs__tj_work *jw = w->json;
    if (n <= jw->cap_nodes) {
        return KVS_OK;
    }
    kvs_ctx *ctx = w->tok->ctx;
    const size_t cap = jw->cap_nodes * 2 > n ? jw->cap_nodes * 2 : n + 64;
    kvs__tj_node *nodes = kvs__calloc(ctx, cap, sizeof *nodes);
    if (!nodes) {
        return kvs__nomem(w->err, "engine", cap * sizeof *nodes);
    }
    if (jw->nodes) {
        memcpy(nodes, jw->nodes, used * sizeof *nodes);
        kvs__free(ctx, jw->nodes, jw->cap_nodes * sizeof *nodes);
    }
    jw->nodes = nodes;
    jw->cap_nodes = cap;
    return KVS_OK;
}

struct path {
    kvs__token_work *w;
    kvs__text text; /* from the first node on */
    size_t reach;   /* nodes [0..reach] are set */
};

static kvs_status relax(struct path *p, size_t from, size_t to, int32_t id, double score)
{
    kvs__tj_node *nodes = p->w->json->nodes;
    if (to > p->reach) {
        kvs_status st = reserve_nodes(p->w, to + 1, p->reach + 1);
        if (st != KVS_OK) {
            return st;
        }
        nodes = p->w->json->nodes;
        for (size_t i = p->reach + 1; i <= to; i++) {
            nodes[i] = (kvs__tj_node){0, UINT32_MAX, -1};
        }
        p->reach = to;
    }
    const double sum = score + nodes[from].score;
    if (nodes[to].from == UINT32_MAX || sum > nodes[to].score) {
        nodes[to] = (kvs__tj_node){sum, (uint32_t)from, id};
    }
    return KVS_OK;
}

/* All words that start at byte `at` of the text. */
static kvs_status extend(struct path *p, size_t at)
{
    const struct kvs__tj *tj = p->w->tok->json;
    const char *text = p->text.ptr + at;
    const size_t left = p->text.len - at;
    size_t one = 0;
    uint32_t cp = 0;
    (void)kvs__utf8_step(text, left, &one, &cp);
    bool single = false;
    int32_t id = 0;
    size_t len = 0;
    kvs__list_walk walk = kvs__token_list_start(&tj->words, text);
    while ((id = kvs__token_list_next(&tj->words, &walk, text, left, &len)) >= 0) {
        kvs_status st = relax(p, at, at + len, id, tj->scores[id]);
        if (st != KVS_OK) {
            return st;
        }
        single = single || len == one;
    }
    return single ? KVS_OK : relax(p, at, at + one, tj->unk, tj->unk_score);
}

static kvs_status push_text(kvs__token_work *w, kvs__text t)
{
    const kvs_tokenizer *tok = w->tok;
    int32_t id = find(tok, t);
    if (id < 0 && has_bytes(tok, t)) {
        kvs_status st = KVS_OK;
        for (size_t i = 0; i < t.len && st == KVS_OK; i++) {
            st = kvs__token_push(w, tok->byte_id[(unsigned char)t.ptr[i]]);
        }
        return st;
    }
    id = id < 0 ? tok->json->unk : id;
    return id >= 0 ? kvs__token_push(w, id) : KVS_OK;
}

/* The best path to node `end`; unknown characters in a row are one text. Links are turned round
 * first, so that the path is walked in order. */
static kvs_status write_path(struct path *p, size_t end)
{
    kvs__tj_node *nodes = p->w->json->nodes;
    const int32_t unk = p->w->tok->json->unk;
    size_t from = nodes[end].from;
    int32_t id = nodes[end].id;
    for (size_t at = end; at > 0;) {
        const kvs__tj_node back = nodes[from];
        nodes[from].from = (uint32_t)at; /* now: where the token that starts here ends */
        nodes[from].id = id;
        at = from;
        from = back.from;
        id = back.id;
    }
    kvs_status st = KVS_OK;
    for (size_t at = 0; at < end && st == KVS_OK;) {
        size_t to = nodes[at].from;
        const bool lost = nodes[at].id == unk;
        while (lost && to < end && nodes[to].id == unk) {
            to = nodes[to].from;
        }
        st = push_text(p->w, (kvs__text){p->text.ptr + at, to - at});
        at = to;
    }
    return st;
}

kvs_status kvs__tj_unigram(kvs__token_work *w, kvs__text word)
{
    struct path p = {w, word, 0};
    const int32_t unk = w->tok->json->unk;
    kvs_status st = reserve_nodes(w, 1, 0);
    if (st != KVS_OK) {
        return st;
    }
    w->json->nodes[0] = (kvs__tj_node){0, UINT32_MAX, -1};
    size_t at = 0;
    while (st == KVS_OK && at < p.text.len) {
        size_t one = 0;
        uint32_t cp = 0;
        const kvs__tj_node here = w->json->nodes[at];
        if (at >= FLUSH_FROM && p.reach == at && here.id != unk) {
            st = write_path(&p, at);
            p.text = (kvs__text){p.text.ptr + at, p.text.len - at};
            p.reach = 0;
            at = 0;
            w->json->nodes[0] = (kvs__tj_node){here.score, UINT32_MAX, -1};
        }
        (void)kvs__utf8_step(p.text.ptr + at, p.text.len - at, &one, &cp);
        st = st == KVS_OK ? extend(&p, at) : st;
        at += one;
    }
    return st == KVS_OK ? write_path(&p, p.text.len) : st;
}
