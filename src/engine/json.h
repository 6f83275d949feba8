/* SPDX-License-Identifier: MIT */
/* json.h: reads JSON text (RFC 8259, UTF-8) into an array of nodes: one allocation that follows the
 * text's size, counted by the context like all others. For config.json, tokenizer.json, safetensors
 * headers and plan files; nothing is written here.
 *
 * An own reader and no library's, because the caller's context counts and bounds all its memory,
 * and because the strings of a vocabulary of 30 MB are decoded where they stand, none copied.
 *
 * Strict: no comments, no trailing commas, no NaN, one value and white space around it, well-formed
 * UTF-8 without unpaired surrogates, at most KVS__JSON_DEPTH open brackets. Names may repeat: a
 * look-up finds the last one, as most readers do. Strings and numbers stay where the text is; a
 * document never changes once it is there, any number of threads may read it. */
#ifndef KVS_ENGINE_JSON_H
#define KVS_ENGINE_JSON_H

#include "base/base.h"
#include "base/map.h"
#include "engine/gguf.h"

#define KVS__JSON_DEPTH 64u
#define KVS__JSON_MOST  ((size_t)1 << 30) /* bytes of text that any caller may allow */

typedef struct kvs__json kvs__json;

typedef enum kvs__json_type {
    KVS__JSON_NONE = 0, /* no such value: what a look-up answers when nothing is there */
    KVS__JSON_NULL,
    KVS__JSON_FALSE,
    KVS__JSON_TRUE,
    KVS__JSON_NUMBER,
    KVS__JSON_STRING,
    KVS__JSON_ARRAY,
    KVS__JSON_OBJECT
} kvs__json_type;

/* A value inside a document. */
typedef struct kvs__jval {
    const kvs__json *doc; /* NULL: none */
    uint32_t at;          /* node */
} kvs__jval;

typedef struct kvs__json_node {
    uint32_t at;   /* of the first byte after the quote, or of the first digit */
    uint32_t len;  /* bytes; arrays and objects: elements or members */
    uint32_t next; /* node after this one and all inside it */
    uint8_t type;  /* kvs__json_type */
    bool mark;     /* string: escapes are in it; number: neither fraction nor exponent */
} kvs__json_node;

/* Open to the functions below alone, which are inline for the walks over a vocabulary. */
struct kvs__json {
    kvs_ctx *ctx;
    kvs__map map; /* bytes 0 when the text is the caller's or own */
    const char *text;
    size_t n;
    char *own; /* text, n + 1 bytes; NULL when it is not the document's */
    kvs__json_node *nodes;
    size_t cap;
    size_t n_nodes;
    char what[128];
};

/* Parses n bytes, borrowed until free. `what` names them in messages and is copied. KVS_E_FORMAT
 * tells line and byte; KVS_E_LIMIT: too large, or brackets too deep. */
kvs_status kvs__json_parse(kvs_ctx *ctx, const char *text, size_t n, const char *what,
                           kvs__json **out, kvs_err *err);
/* The same for a file of at most max_bytes, mapped until free; `Infinity`, which Python writes, is a
 * number in it. KVS_E_NOTFOUND: there is none. */
kvs_status kvs__json_load(kvs_ctx *ctx, const char *path, size_t max_bytes, kvs__json **out,
                          kvs_err *err);
/* The same for text in an allocation of n + 1 bytes, which becomes the document's, also on failure:
 * strings are decoded in place, so that none is escaped and kvs__json_raw is the string itself. */
kvs_status kvs__json_adopt(kvs_ctx *ctx, char *text, size_t n, const char *what, kvs__json **out,
                           kvs_err *err);
/* A whole file of at most max_bytes in an allocation of *n + 1 bytes, ended by a NUL. */
kvs_status kvs__json_file(kvs_ctx *ctx, const char *path, size_t max_bytes, char **text, size_t *n,
                          kvs_err *err);
/* Gives the nodes back and keeps the text, to which strings may still point; no value is left. */
void kvs__json_drop_nodes(kvs__json *doc);
void kvs__json_free(kvs__json *doc); /* NULL is fine */

kvs__jval kvs__json_root(const kvs__json *doc); /* of NULL: none */
static inline const kvs__json_node *kvs__json_node_of(kvs__jval v)
{
    return &v.doc->nodes[v.at];
}

static inline kvs__json_type kvs__json_kind(kvs__jval v)
{
    return v.doc ? (kvs__json_type)kvs__json_node_of(v)->type : KVS__JSON_NONE;
}

/* Elements of an array, members of an object; 0 for others. */
static inline size_t kvs__json_count(kvs__jval v)
{
    kvs__json_type type = kvs__json_kind(v);
    bool many = type == KVS__JSON_ARRAY || type == KVS__JSON_OBJECT;
    return v.doc && many ? kvs__json_node_of(v)->len : 0;
}

/* Steps through an array: *v none at first; false at the end. */
static inline bool kvs__json_next(kvs__jval array, kvs__jval *v)
{
    if (kvs__json_kind(array) != KVS__JSON_ARRAY) {
        return false;
    }
    uint32_t at = v->doc ? kvs__json_node_of(*v)->next : array.at + 1;
    *v = at < kvs__json_node_of(array)->next ? (kvs__jval){array.doc, at} : (kvs__jval){NULL, 0};
    return v->doc != NULL;
}

/* The bytes between the quotes, or the digits of a number; empty for other kinds. */
static inline kvs__str kvs__json_raw(kvs__jval v)
{
    kvs__json_type type = kvs__json_kind(v);
    if (type != KVS__JSON_STRING && type != KVS__JSON_NUMBER) {
        return (kvs__str){"", 0};
    }
    return (kvs__str){v.doc->text + kvs__json_node_of(v)->at, kvs__json_node_of(v)->len};
}

/* Whether raw holds escapes, so that it is not the string itself. */
static inline bool kvs__json_escaped(kvs__jval v)
{
    return kvs__json_kind(v) == KVS__JSON_STRING && kvs__json_node_of(v)->mark;
}

const char *kvs__json_kind_name(kvs__jval v); /* "string", "nothing" ... */

/* Member of an object by name, in time that follows its size; none for anything else. */
kvs__jval kvs__json_get(kvs__jval object, const char *name);
/* Steps through an object: *value none at first. */
bool kvs__json_member(kvs__jval object, kvs__jval *name, kvs__jval *value);

/* Decodes a string into dst, which has room for kvs__json_raw(v).len bytes; returns its length. It
 * may hold NUL and gets none at the end. */
size_t kvs__json_text(kvs__jval v, char *dst);
bool kvs__json_is(kvs__jval v, const char *text); /* a string of exactly this text */

/* Numbers: false where v is none. int: an integral value that fits, however it is written; whole:
 * one written without fraction and exponent; double: the nearest, infinite beyond the largest. */
bool kvs__json_int(kvs__jval v, int64_t *out);
bool kvs__json_whole(kvs__jval v, int64_t *out);
bool kvs__json_double(kvs__jval v, double *out);

#endif
