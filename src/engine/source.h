/* SPDX-License-Identifier: MIT */
/* source.h: where a model's weights come from. A model is metadata and named tensors; net.c and the
 * architectures ask for both by the engine's names, which are those of GGUF ("blk.3.attn_q.weight",
 * "llama.block_count"), and never see whether a GGUF file or a directory of safetensors answers.
 *
 * Metadata always is a kvs__gguf handle: the file's own, or one in memory that hf_config.c writes
 * from config.json. Tensors are described by kvs__tensor, by value; what it points to lives as long
 * as the source. */
#ifndef KVS_ENGINE_SOURCE_H
#define KVS_ENGINE_SOURCE_H

#include "base/base.h"
#include "engine/gguf.h"
#include "kern/wmat.h"

struct kvs__hf;

typedef struct kvs__source {
    const kvs__gguf *meta;
    struct kvs__hf *hf; /* NULL: the tensors are meta's too */
} kvs__source;

typedef struct kvs__tensor {
    kvs__str name;         /* as in the file */
    const char *type_name; /* "Q4_K", "BF16", "affine4:64" */
    bool is_weight;        /* type is one that the kernels read */
    kvs__wtype type;
    uint32_t n_dims;
    size_t ne[4];     /* elements per dimension, fastest first, unused ones 1 */
    size_t n_rows;    /* ne[1] * ne[2] * ne[3] */
    size_t row_bytes; /* of ne[0] elements, codes alone where the type is affine */
    size_t bytes;     /* all that belongs to it */
    const uint8_t *data;
    kvs__waffine affine; /* scales and biases of affine types */
    float plus;          /* is added to each element: norms that are stored minus one */
} kvs__tensor;

/* By the engine's name; false when there is none. */
bool kvs__source_find(const kvs__source *s, const char *name, kvs__tensor *out);
/* Expert e of a matrix per expert, `name` being "blk.3.ffn_gate_exps.weight": a slice where they
 * are one tensor of three dimensions, a tensor of its own where they are not; n_rows is that of
 * the expert. False when there is none. */
bool kvs__source_expert(const kvs__source *s, const char *name, uint32_t e, kvs__tensor *out);
/* In the order of the file, by the file's names; false past the end. */
bool kvs__source_at(const kvs__source *s, size_t i, kvs__tensor *out);

/* `n` rows from `first` on of a tensor whose type is a weight's. */
kvs__wrows kvs__tensor_rows(const kvs__tensor *t, size_t first, size_t n);
/* All elements of a tensor of one row as f32. */
void kvs__tensor_vector(const kvs__tensor *t, float *dst);

/* The name that messages should use for the engine's name: what the file would call it. */
typedef struct kvs__source_label {
    char text[160];
} kvs__source_label;
kvs__source_label kvs__source_name(const kvs__source *s, const char *name);

#endif
