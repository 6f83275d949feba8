/* SPDX-License-Identifier: MIT */
/* json_tape.h: JSON text as a flat array of nodes, for files of tens of megabytes.
 *
 * Strings are unescaped where they stand, so the text belongs to the document and nodes point into
 * it. Every allocation goes through the context and is bounded by 8 times the text, which is why
 * this is not one of the usual libraries: they allocate for each value, from the C library.
 */
#ifndef KVS_ENGINE_JSON_TAPE_H
#define KVS_ENGINE_JSON_TAPE_H

#include "base/base.h"

#define KVS__JSON_DEPTH_MAX 64u
#define KVS__JSON_BYTES_MAX ((size_t)128 << 20)

typedef enum kvs__jtype {
    KVS__J_NULL = 0,
    KVS__J_FALSE,
    KVS__J_TRUE,
    KVS__J_NUMBER,
    KVS__J_STRING,
    KVS__J_ARRAY,
    KVS__J_OBJECT
} kvs__jtype;

typedef struct kvs__jnode {
    uint32_t type; /* kvs__jtype */
    uint32_t at;   /* byte of the text where a string or number starts */
    uint32_t len;  /* bytes of it; elements of an array, members of an object */
    uint32_t next; /* the node after this one and all that is in it */
} kvs__jnode;

/* Node 0 is the whole. The first child of node i is i + 1, its sibling nodes[i + 1].next; members
 * are a string node and the value's node in turn. */
typedef struct kvs__json {
    kvs_ctx *ctx;
    char *text;
    size_t text_bytes;
    kvs__jnode *nodes;
    size_t n_nodes;
    size_t cap_nodes;
    const char *name; /* for messages */
} kvs__json;

#define KVS__JSON_NONE UINT32_MAX

/* Reads and parses a file. KVS_E_NOTFOUND: there is none; KVS_E_LIMIT: it is too large or nested
 * too deeply; KVS_E_FORMAT names the byte. name is borrowed. */
kvs_status kvs__json_open(kvs_ctx *ctx, const char *path, const char *name, kvs__json *out,
                          kvs_err *err);
/* Parses a copy of text. */
kvs_status kvs__json_parse(kvs_ctx *ctx, const char *text, size_t n, const char *name,
                           kvs__json *out, kvs_err *err);
void kvs__json_free(kvs__json *j); /* a zeroed one is fine */
/* Gives the nodes back and keeps the text, to which strings may still point. */
void kvs__json_drop_nodes(kvs__json *j);

/* A whole file in an allocation of *n + 1 bytes, ended by a NUL; the same failures as above. */
kvs_status kvs__file_read(kvs_ctx *ctx, const char *path, size_t max, char **out, size_t *n,
                          kvs_err *err);

/* The value of a member (of equal keys the last one's), or KVS__JSON_NONE: also when object is not
 * an object or is itself KVS__JSON_NONE. */
uint32_t kvs__json_get(const kvs__json *j, uint32_t object, const char *key);
/* KVS__J_NULL for KVS__JSON_NONE. */
kvs__jtype kvs__json_type(const kvs__json *j, uint32_t node);
const char *kvs__json_str(const kvs__json *j, uint32_t node, size_t *n); /* NULL: no string */
bool kvs__json_is(const kvs__json *j, uint32_t node, const char *text);
bool kvs__json_int(const kvs__json *j, uint32_t node, int64_t *out);
/* Nearest double, for up to 19 digits and exponents that leave at most 19 places. */
bool kvs__json_double(const kvs__json *j, uint32_t node, double *out);

#endif
