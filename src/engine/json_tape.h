/* SPDX-License-Identifier: MIT */
/* json_tape.h: JSON text as a flat array of nodes, for files of tens of megabytes whose strings are
 * kept: a tokenizer.json.
 *
 * Strings are unescaped where they stand, so the text belongs to the document, nodes point into it,
 * and a vocabulary's texts stay in it when the nodes are gone: none is copied. Every allocation goes
 * through the context and is bounded by 8 times the text.
 */
#ifndef KVS_ENGINE_JSON_TAPE_H
#define KVS_ENGINE_JSON_TAPE_H

#include "base/base.h"

#define KVS__TAPE_DEPTH_MAX 64u
#define KVS__TAPE_BYTES_MAX ((size_t)128 << 20)

typedef enum kvs__ttype {
    KVS__T_NULL = 0,
    KVS__T_FALSE,
    KVS__T_TRUE,
    KVS__T_NUMBER,
    KVS__T_STRING,
    KVS__T_ARRAY,
    KVS__T_OBJECT
} kvs__ttype;

typedef struct kvs__tnode {
    uint32_t type; /* kvs__ttype */
    uint32_t at;   /* byte of the text where a string or number starts */
    uint32_t len;  /* bytes of it; elements of an array, members of an object */
    uint32_t next; /* the node after this one and all that is in it */
} kvs__tnode;

/* Node 0 is the whole. The first child of node i is i + 1, its sibling nodes[i + 1].next; members
 * are a string node and the value's node in turn. */
typedef struct kvs__tape {
    kvs_ctx *ctx;
    char *text;
    size_t text_bytes;
    kvs__tnode *nodes;
    size_t n_nodes;
    size_t cap_nodes;
    const char *name; /* for messages */
} kvs__tape;

#define KVS__TAPE_NONE UINT32_MAX

/* Reads and parses a file. KVS_E_NOTFOUND: there is none; KVS_E_LIMIT: it is too large or nested
 * too deeply; KVS_E_FORMAT names the byte. name is borrowed. */
kvs_status kvs__tape_open(kvs_ctx *ctx, const char *path, const char *name, kvs__tape *out,
                          kvs_err *err);
/* Parses a copy of text. */
kvs_status kvs__tape_parse(kvs_ctx *ctx, const char *text, size_t n, const char *name,
                           kvs__tape *out, kvs_err *err);
void kvs__tape_free(kvs__tape *j); /* a zeroed one is fine */
/* Gives the nodes back and keeps the text, to which strings may still point. */
void kvs__tape_drop_nodes(kvs__tape *j);

/* A whole file in an allocation of *n + 1 bytes, ended by a NUL; the same failures as above. */
kvs_status kvs__tape_file(kvs_ctx *ctx, const char *path, size_t max, char **out, size_t *n,
                          kvs_err *err);

/* The value of a member (of equal keys the last one's), or KVS__TAPE_NONE: also when object is not
 * an object or is itself KVS__TAPE_NONE. */
uint32_t kvs__tape_get(const kvs__tape *j, uint32_t object, const char *key);
/* KVS__T_NULL for KVS__TAPE_NONE. */
kvs__ttype kvs__tape_type(const kvs__tape *j, uint32_t node);
const char *kvs__tape_str(const kvs__tape *j, uint32_t node, size_t *n); /* NULL: no string */
bool kvs__tape_is(const kvs__tape *j, uint32_t node, const char *text);
bool kvs__tape_int(const kvs__tape *j, uint32_t node, int64_t *out);
/* Nearest double, for up to 19 digits and exponents that leave at most 19 places. */
bool kvs__tape_double(const kvs__tape *j, uint32_t node, double *out);

#endif
