/* SPDX-License-Identifier: MIT */
/* token_json_post.c: what is put before and behind a text, and the files beside tokenizer.json:
 * special tokens, end-of-generation ids, chat templates.
 *
 * add_bos_token and add_eos_token of tokenizer_config.json have the last word where they are set.
 */
#include <stdio.h>
#include <string.h>

#include "engine/token_json_priv.h"

#define PUT_MAX 64u /* ids before or behind a text */

/* ---- ids around a text */

static kvs_status put_ids(kvs_tokenizer *tok, int32_t **ids, size_t *n, const int32_t *more,
                          size_t n_more, bool in_front, kvs_err *err)
{
    if (*n + n_more > PUT_MAX) {
        return kvs__tj_bad("the post-processor adds too many tokens", err);
    }
    int32_t *all = kvs__calloc(tok->ctx, *n + n_more, sizeof *all);
    if (!all) {
        return kvs__nomem(err, "engine", (*n + n_more) * sizeof *all);
    }
    for (size_t i = 0; i < *n; i++) {
        all[in_front ? n_more + i : i] = (*ids)[i];
    }
    for (size_t i = 0; i < n_more; i++) {
        all[in_front ? i : *n + i] = more[i];
    }
    kvs__free(tok->ctx, *ids, *n * sizeof *all);
    *ids = all;
    *n += n_more;
    return KVS_OK;
}

static kvs_status put_front(kvs_tokenizer *tok, const int32_t *ids, size_t n, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    return n > 0 ? put_ids(tok, &tj->front, &tj->n_front, ids, n, true, err) : KVS_OK;
}

static kvs_status put_back(kvs_tokenizer *tok, const int32_t *ids, size_t n, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    return n > 0 ? put_ids(tok, &tj->back, &tj->n_back, ids, n, false, err) : KVS_OK;
}

static kvs_status read_id(const kvs_tokenizer *tok, kvs__jval node, int32_t *id, kvs_err *err)
{
    int64_t v = -1;
    if (!kvs__json_whole(node, &v) || v < 0 || (uint64_t)v >= tok->n_tokens) {
        return kvs__tj_bad("a post-processor names an id that is no token", err);
    }
    *id = (int32_t)v;
    return KVS_OK;
}

/* The ids of special token `name` of a template, appended to ids. */
static kvs_status template_ids(const kvs_tokenizer *tok, kvs__jval table, kvs__jval name,
                               int32_t *ids, size_t *n, kvs_err *err)
{
    const kvs__text text = kvs__tj_str(name);
    char key[256];
    if (!text.ptr || text.len >= sizeof key || memchr(text.ptr, 0, text.len)) {
        return kvs__tj_bad("malformed TemplateProcessing", err);
    }
    memcpy(key, text.ptr, text.len);
    key[text.len] = '\0';
    const kvs__jval list = kvs__json_get(kvs__json_get(table, key), "ids");
    if (kvs__json_kind(list) != KVS__JSON_ARRAY) {
        return kvs__tj_bad("TemplateProcessing names a token without ids", err);
    }
    kvs__jval at = {NULL, 0};
    while (kvs__json_next(list, &at)) {
        if (*n == PUT_MAX) {
            return kvs__tj_bad("the post-processor adds too many tokens", err);
        }
        kvs_status st = read_id(tok, at, &ids[*n], err);
        if (st != KVS_OK) {
            return st;
        }
        (*n)++;
    }
    return KVS_OK;
}

static kvs_status read_template(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    const kvs__jval list = kvs__json_get(node, "single");
    const kvs__jval table = kvs__json_get(node, "special_tokens");
    if (kvs__json_kind(list) != KVS__JSON_ARRAY) {
        return kvs__tj_bad("TemplateProcessing without single", err);
    }
    int32_t ids[2][PUT_MAX];
    size_t n[2] = {0, 0};
    unsigned side = 0;
    kvs__jval at = {NULL, 0};
    while (kvs__json_next(list, &at)) {
        const kvs__jval special = kvs__json_get(at, "SpecialToken");
        const kvs__jval sequence = kvs__json_get(at, "Sequence");
        kvs_status st = KVS_OK;
        if (special.doc) {
            st = template_ids(tok, table, kvs__json_get(special, "id"), ids[side], &n[side], err);
        } else if (side == 0 && kvs__json_is(kvs__json_get(sequence, "id"), "A")) {
            side = 1;
        } else {
            st = kvs__tj_bad("TemplateProcessing: single is not one A among special tokens", err);
        }
        if (st != KVS_OK) {
            return st;
        }
    }
    if (side == 0) {
        return kvs__tj_bad("TemplateProcessing: single has no A", err);
    }
    kvs_status st = put_front(tok, ids[0], n[0], err);
    return st == KVS_OK ? put_back(tok, ids[1], n[1], err) : st;
}

/* RobertaProcessing and BertProcessing: "cls": ["<s>", 0]. */
static kvs_status read_pair(kvs_tokenizer *tok, kvs__jval node, const char *key, int32_t *id,
                            kvs_err *err)
{
    kvs__jval pair[2];
    if (!kvs__tj_pair(kvs__json_get(node, key), pair)) {
        return kvs__tj_bad("malformed post-processor", err);
    }
    return read_id(tok, pair[1], id, err);
}

static kvs_status read_post(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    const kvs__jval type = kvs__json_get(node, "type");
    if (kvs__json_is(type, "ByteLevel")) { /* trims offsets, which are not given out */
        return KVS_OK;
    }
    if (kvs__json_is(type, "TemplateProcessing")) {
        return read_template(tok, node, err);
    }
    if (kvs__json_is(type, "RobertaProcessing") || kvs__json_is(type, "BertProcessing")) {
        int32_t cls = -1;
        int32_t sep = -1;
        kvs_status st = read_pair(tok, node, "cls", &cls, err);
        st = st == KVS_OK ? read_pair(tok, node, "sep", &sep, err) : st;
        st = st == KVS_OK ? put_front(tok, &cls, 1, err) : st;
        return st == KVS_OK ? put_back(tok, &sep, 1, err) : st;
    }
    return kvs__tj_refuse("post_processor", node, err);
}

kvs_status kvs__tj_post_read(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    return kvs__tj_each(node, "processors", read_post, tok, err);
}

/* ---- strings that the tokenizer keeps */

static kvs_status keep(kvs_tokenizer *tok, const char *key, kvs__text text, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    if (!tj->strings) {
        tj->strings = kvs__calloc(tok->ctx, KVS__TJ_STRINGS_MAX, sizeof *tj->strings);
        if (!tj->strings) {
            return kvs__nomem(err, "engine", KVS__TJ_STRINGS_MAX * sizeof *tj->strings);
        }
    }
    for (size_t i = 0; i < tj->n_strings; i++) {
        if (strcmp(tj->strings[i].key, key) == 0) {
            return KVS_OK; /* the first file that says it counts */
        }
    }
    if (tj->n_strings == KVS__TJ_STRINGS_MAX) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "more than %u chat templates",
                         KVS__TJ_STRINGS_MAX);
    }
    const size_t len = strlen(key);
    char *block = kvs__alloc(tok->ctx, len + 1 + text.len);
    if (!block) {
        return kvs__nomem(err, "engine", len + 1 + text.len);
    }
    memcpy(block, key, len + 1);
    if (text.len > 0) {
        memcpy(block + len + 1, text.ptr, text.len);
    }
    tj->strings[tj->n_strings++] = (kvs__tj_string){block, len, text.len};
    return KVS_OK;
}

/* ---- the files beside it */

struct side {
    kvs_tokenizer *tok;
    kvs__vocab_src *src;
    const char *name; /* of the file at hand */
    kvs__jval root;
    kvs_err *err;
};

/* A token is written as its text or as {"content": text}. */
static kvs__text token_text(kvs__jval object, const char *key)
{
    kvs__text t = {NULL, 0};
    kvs__jval node = kvs__json_get(object, key);
    if (kvs__json_kind(node) == KVS__JSON_OBJECT) {
        node = kvs__json_get(node, "content");
    }
    t = kvs__tj_str(node);
    return t;
}

static kvs_status read_tokens(const struct side *s)
{
    static const struct {
        const char *key;
        int special;
    } keys[] = {{"bos_token", KVS_SPECIAL_BOS},
                {"eos_token", KVS_SPECIAL_EOS},
                {"unk_token", KVS_SPECIAL_UNK},
                {"pad_token", KVS_SPECIAL_PAD},
                {"sep_token", KVS_SPECIAL_SEP},
                {"mask_token", KVS_SPECIAL_MASK},
                {"cls_token", -1},
                {"tokenizer_class", -1}};
    for (size_t i = 0; i < KVS_COUNT(keys); i++) {
        const kvs__text t = token_text(s->root, keys[i].key);
        if (!t.ptr) {
            continue;
        }
        kvs_status st = keep(s->tok, keys[i].key, t, s->err);
        if (st != KVS_OK) {
            return st;
        }
        const int32_t id = t.len > 0 ? kvs__token_map_find(s->tok, t.ptr, t.len) : -1;
        if (keys[i].special >= 0 && id >= 0 && s->src->special[keys[i].special] < 0) {
            s->src->special[keys[i].special] = id;
        }
    }
    return KVS_OK;
}

static kvs_status keep_named(const struct side *s, kvs__text name, kvs__text text)
{
    char key[128];
    const bool plain = name.len == 7 && memcmp(name.ptr, "default", 7) == 0;
    if (name.len > 80 || memchr(name.ptr, 0, name.len)) {
        return kvs__fail(s->err, KVS_E_FORMAT, "engine", "%s: the name of a chat template",
                         s->name);
    }
    (void)snprintf(key, sizeof key, "chat_template.%.*s", (int)name.len, name.ptr);
    return keep(s->tok, plain ? "chat_template" : key, text, s->err);
}

static kvs_status read_chat(const struct side *s)
{
    const kvs__jval node = kvs__json_get(s->root, "chat_template");
    kvs__text text = {NULL, 0};
    text = kvs__tj_str(node);
    if (text.ptr) {
        return keep(s->tok, "chat_template", text, s->err);
    }
    if (kvs__json_kind(node) != KVS__JSON_ARRAY) {
        return KVS_OK;
    }
    kvs__jval at = {NULL, 0};
    for (unsigned i = 0; kvs__json_next(node, &at); i++) {
        kvs__text name = {NULL, 0};
        name = kvs__tj_str(kvs__json_get(at, "name"));
        text = kvs__tj_str(kvs__json_get(at, "template"));
        if (!name.ptr || !text.ptr) {
            return kvs__fail(s->err, KVS_E_FORMAT, "engine", "%s: chat template %u", s->name, i);
        }
        kvs_status st = keep_named(s, name, text);
        if (st != KVS_OK) {
            return st;
        }
    }
    return KVS_OK;
}

/* The switch decides whether the token is there at the edge of the text. */
static kvs_status set_edge(kvs_tokenizer *tok, int32_t id, bool want, bool in_front, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    int32_t **ids = in_front ? &tj->front : &tj->back;
    size_t *n = in_front ? &tj->n_front : &tj->n_back;
    const bool there = *n > 0 && (*ids)[in_front ? 0 : *n - 1] == id;
    if (there == want || id < 0) {
        return KVS_OK;
    }
    if (want) {
        return put_ids(tok, ids, n, &id, 1, in_front, err);
    }
    int32_t *all = *n > 1 ? kvs__calloc(tok->ctx, *n - 1, sizeof *all) : NULL;
    if (*n > 1 && !all) {
        return kvs__nomem(err, "engine", *n * sizeof *all);
    }
    for (size_t i = 0; i + 1 < *n; i++) {
        all[i] = (*ids)[in_front ? i + 1 : i];
    }
    kvs__free(tok->ctx, *ids, *n * sizeof *all);
    *ids = all;
    (*n)--;
    return KVS_OK;
}

static kvs_status read_switches(const struct side *s)
{
    static const char *const keys[2] = {"add_bos_token", "add_eos_token"};
    for (unsigned i = 0; i < 2; i++) {
        const kvs__json_type t = kvs__json_kind(kvs__json_get(s->root, keys[i]));
        if (t != KVS__JSON_TRUE && t != KVS__JSON_FALSE) {
            continue;
        }
        const int32_t id = s->src->special[i == 0 ? KVS_SPECIAL_BOS : KVS_SPECIAL_EOS];
        kvs_status st = set_edge(s->tok, id, t == KVS__JSON_TRUE, i == 0, s->err);
        if (st != KVS_OK) {
            return st;
        }
    }
    return KVS_OK;
}

static kvs_status read_config(struct side *s)
{
    kvs_status st = read_tokens(s);
    st = st == KVS_OK ? read_chat(s) : st;
    return st == KVS_OK ? read_switches(s) : st;
}

static void add_eog(const struct side *s, kvs__jval v)
{
    int64_t id = -1;
    if (s->src->n_eog < KVS__TJ_EOG_MAX && kvs__json_whole(v, &id) && id >= 0 &&
        (uint64_t)id < s->tok->n_tokens) {
        s->tok->json->eog[s->src->n_eog++] = (int32_t)id;
    }
}

/* "eos_token_id" of generation_config.json: one id or several. */
static kvs_status read_generation(struct side *s)
{
    const kvs__jval node = kvs__json_get(s->root, "eos_token_id");
    kvs__jval at = {NULL, 0};
    add_eog(s, node);
    while (kvs__json_next(node, &at)) {
        add_eog(s, at);
    }
    return KVS_OK;
}

static kvs_status read_file(struct side *s, const char *dir, const char *name,
                            kvs_status (*read)(struct side *s))
{
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path) {
        return kvs__fail(s->err, KVS_E_LIMIT, "engine", "a path of %d bytes", n);
    }
    kvs_err err = {0};
    kvs__json *doc = NULL;
    kvs_status st = kvs__tj_open(s->tok->ctx, path, name, &doc, &err);
    if (st == KVS_E_NOTFOUND) {
        return KVS_OK;
    }
    if (st != KVS_OK) {
        if (s->err) {
            *s->err = err;
        }
        return st;
    }
    s->name = name;
    s->root = kvs__json_root(doc);
    st = read(s);
    kvs__json_free(doc);
    return st;
}

static kvs_status read_jinja(const struct side *s, const char *dir)
{
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    if (n < 0 || (size_t)n >= sizeof path) {
        return kvs__fail(s->err, KVS_E_LIMIT, "engine", "a path of %d bytes", n);
    }
    kvs_err err = {0};
    kvs__text text = {NULL, 0};
    char *bytes = NULL;
    kvs_status st = kvs__json_file(s->tok->ctx, path, (size_t)4 << 20, &bytes, &text.len, &err);
    if (st == KVS_E_NOTFOUND) {
        return KVS_OK;
    }
    if (st != KVS_OK) {
        if (s->err) {
            *s->err = err;
        }
        return st;
    }
    text.ptr = bytes;
    st = keep(s->tok, "chat_template", text, s->err);
    kvs__free(s->tok->ctx, bytes, text.len + 1);
    return st;
}

static void guess_special(const kvs_tokenizer *tok, kvs__vocab_src *src)
{
    const struct kvs__tj *tj = tok->json;
    int32_t *special = src->special;
    if (special[KVS_SPECIAL_UNK] < 0) {
        special[KVS_SPECIAL_UNK] = tj->unk;
    }
    if (special[KVS_SPECIAL_BOS] < 0 && tj->n_front == 1) {
        special[KVS_SPECIAL_BOS] = tj->front[0];
    }
    if (special[KVS_SPECIAL_EOS] < 0 && tj->n_back == 1) {
        special[KVS_SPECIAL_EOS] = tj->back[0];
    }
}

kvs_status kvs__tj_config_read(kvs_tokenizer *tok, const char *dir, kvs__vocab_src *src,
                               kvs_err *err)
{
    struct side s = {.tok = tok, .src = src, .err = err};
    kvs_status st = KVS_OK;
    if (dir) {
        st = read_jinja(&s, dir);
        st = st == KVS_OK ? read_file(&s, dir, "chat_template.json", read_config) : st;
        st = st == KVS_OK ? read_file(&s, dir, "tokenizer_config.json", read_config) : st;
        st = st == KVS_OK ? read_file(&s, dir, "special_tokens_map.json", read_config) : st;
        st = st == KVS_OK ? read_file(&s, dir, "generation_config.json", read_generation) : st;
    }
    guess_special(tok, src);
    src->eog = tok->json->eog;
    return st;
}
