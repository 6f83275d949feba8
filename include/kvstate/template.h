/* SPDX-License-Identifier: MIT */
/* kvstate/template.h: chat templates, the Jinja subset that model files carry, and the small value
 * trees (JSON) that they are rendered with.
 *
 * What is rendered is what Python's jinja2 makes of it with trim_blocks and lstrip_blocks on, a
 * sandbox, break and continue, and `tojson`, `raise_exception` and `strftime_now` as chat templates
 * expect them. What is outside the subset is refused by name and line, most of it when the template
 * is compiled. No template can recurse, loop or grow without bound: every limit gives an error.
 *
 * A chat's messages come from outside. The result tells which of its bytes do, so that text which
 * merely looks like a control token need not become one (kvs_value_input_span). */
#ifndef KVSTATE_TEMPLATE_H
#define KVSTATE_TEMPLATE_H

#include "kvstate/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvs_value_kind {
    KVS_VALUE_OTHER = 0,
    KVS_VALUE_NULL = 1,
    KVS_VALUE_BOOL = 2,
    KVS_VALUE_INT = 3,
    KVS_VALUE_FLOAT = 4,
    KVS_VALUE_TEXT = 5,
    KVS_VALUE_ARRAY = 6,
    KVS_VALUE_OBJECT = 7
} kvs_value_kind;

/* A tree of values, immutable: any number of threads may read it. Parts live as long as the root,
 * which is the only one to be freed. */
typedef struct kvs_value kvs_value;

enum {
    /* The text is the object of a template's variables: strings within its members `messages`,
     * `tools` and `documents` are marked as input. */
    KVS_VALUE_VARIABLES = 1u << 0
};

/* Reads JSON (RFC 8259; also NaN and Infinity as Python writes them; of equal keys the last one
 * counts). KVS_E_FORMAT names line and column; KVS_E_LIMIT: nested deeper than 128. */
KVS_API kvs_status kvs_value_parse(kvs_ctx *ctx, const char *json, size_t n_bytes, uint32_t flags,
                                   kvs_value **out, kvs_err *err);
KVS_API void kvs_value_free(kvs_value *root); /* NULL is fine */

/* All of these take NULL, which has no parts: a path can be followed without checks. */
KVS_API kvs_value_kind kvs_value_type(const kvs_value *v);
KVS_API size_t kvs_value_size(const kvs_value *v); /* members of an array or object */
KVS_API const kvs_value *kvs_value_at(const kvs_value *v, size_t i);
KVS_API const kvs_value *kvs_value_get(const kvs_value *v, const char *key);
/* Borrowed, terminated by a NUL that does not count; NULL for what is no text. */
KVS_API const char *kvs_value_text(const kvs_value *v, size_t *n_bytes);
/* `other` for what is no whole number (no boolean). */
KVS_API int64_t kvs_value_int(const kvs_value *v, int64_t other);
/* Part i of a text that came from input: bytes [*from, *to), in order. KVS_NO past the last. */
KVS_API kvs_status kvs_value_input_span(const kvs_value *v, size_t i, size_t *from, size_t *to);

/* Immutable once compiled: any number of threads may render one, each in a context of its own. */
typedef struct kvs_template kvs_template;

/* KVS_E_FORMAT: a syntax error; KVS_E_UNSUPPORTED: a construct, filter or test that is not in the
 * subset; both name the line. KVS_E_LIMIT: nested too deeply, or above 1 MiB. */
KVS_API kvs_status kvs_template_compile(kvs_ctx *ctx, const char *text, size_t n_bytes,
                                        kvs_template **out, kvs_err *err);
KVS_API void kvs_template_free(kvs_template *t); /* NULL is fine; its context outlives it */

typedef struct kvs_template_opts {
    size_t struct_size;
    size_t max_bytes;   /* memory of one rendering, 0: 256 MiB */
    size_t max_output;  /* bytes of the result, 0: 64 MiB */
    uint64_t max_steps; /* evaluations, 0: 20 million (a second or so) */
    uint32_t has_time;  /* without it strftime_now is refused */
    uint32_t reserved;  /* 0 */
    int64_t time;       /* seconds since 1970 on the clock to be shown (time zone included) */
} kvs_template_opts;
#define KVS_TEMPLATE_OPTS_INIT                                                                     \
    {                                                                                              \
        sizeof(kvs_template_opts), 0, 0, 0, 0, 0, 0                                                \
    }

/* Renders with the members of `vars` (an object, or NULL for none) as variables; *out is a text.
 * KVS_E_FORMAT: the template went wrong or called raise_exception (the message says which and the
 * line); KVS_E_UNSUPPORTED as above; KVS_E_LIMIT names the limit; KVS_E_NOMEM. */
KVS_API kvs_status kvs_template_render(kvs_ctx *ctx, const kvs_template *t, const kvs_value *vars,
                                       const kvs_template_opts *opts, kvs_value **out,
                                       kvs_err *err);

#ifdef __cplusplus
}
#endif
#endif
