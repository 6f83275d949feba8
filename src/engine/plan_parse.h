/* SPDX-License-Identifier: MIT */
/* plan_parse.h: reading of codec names, pairs and layers files for plan.c. */
#ifndef KVS_ENGINE_PLAN_PARSE_H
#define KVS_ENGINE_PLAN_PARSE_H

#include "base/base.h"
#include "kvstate/plan.h"

/* Remarks on names that were replaced, each once. */
typedef struct kvs__plan_notes {
    uint32_t n;
    char text[4][96];
} kvs__plan_notes;

typedef struct kvs__plan_parser {
    kvs_layer_spec *layers; /* [n_layers] */
    uint32_t n_layers;
    uint32_t group; /* of affine codecs that don't name theirs; 0: as named */
    kvs__plan_notes *notes;
    kvs_ctx *ctx;
    const kvs_model *model;
} kvs__plan_parser;

/* "paged" and "paged/N" in front of a plan: *kv is moved behind it and the colon ("f16" where nothing
 * follows), *block is N or 64; neither is touched where the text does not begin so. */
kvs_status kvs__plan_parse_paged(const char **kv, uint32_t *block, kvs_err *err);
/* One codec: kvs_codec_parse's names, and llama.cpp's type names mapped to the nearest of ours. */
kvs_status kvs__plan_parse_codec(kvs__plan_parser *ps, const char *name, kvs_codec *out,
                                 kvs_err *err);
/* "NAME", "kXvY" or "NAME+NAME". */
kvs_status kvs__plan_parse_pair(kvs__plan_parser *ps, const char *text, kvs_codec *k, kvs_codec *v,
                                kvs_err *err);
/* Lines "LAYERS CODEC [window=N] [sinks=N] [start=N]", later ones override; every layer must be
 * named at least once. Errors say FILE:LINE. */
kvs_status kvs__plan_parse_file(kvs__plan_parser *ps, const char *path, kvs_err *err);
/* The same lines as text, ended by newlines or semicolons. */
kvs_status kvs__plan_parse_layers(kvs__plan_parser *ps, const char *lines, kvs_err *err);
/* plan_config.c: layers of a kv_config.json, all others dense bf16. */
kvs_status kvs__plan_parse_config(kvs__plan_parser *ps, const char *path, kvs_err *err);

/* plan.c: whether the layer has a window or sinks that its model does not have. */
bool kvs__plan_own_window(const kvs_plan *p, uint32_t layer);

/* A text that is cut at cap but counted in full. */
typedef struct kvs__plan_text {
    char *dst;
    size_t cap;
    size_t used;
} kvs__plan_text;
void kvs__plan_put(kvs__plan_text *t, const char *fmt, ...) KVS_PRINTF(2, 3);

#endif
