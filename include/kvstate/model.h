/* SPDX-License-Identifier: MIT */
/* kvstate/model.h: a model: weights, hyper-parameters, tokenizer, metadata. docs/models.md tells
 * which files are read. */
#ifndef KVSTATE_MODEL_H
#define KVSTATE_MODEL_H

#include "kvstate/base.h"
#include "kvstate/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Read-only once open: any number of threads and sessions, also of other contexts, may share one.
 * Closed after its sessions and before its context. Weights are used where the file is mapped; the
 * file must not change while it is open. */
typedef struct kvs_model kvs_model;

enum {
    /* Metadata and the tensor list alone: any architecture opens, sessions are refused. */
    KVS_MODEL_INSPECT = 1u << 0
};

typedef struct kvs_model_opts {
    size_t struct_size;
    uint32_t flags;    /* KVS_MODEL_* */
    uint32_t reserved; /* 0 */
} kvs_model_opts;
#define KVS_MODEL_OPTS_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_model_opts), 0, 0                                                               \
    }

/* Opens a GGUF file, or a directory with config.json and safetensors (or one of its .safetensors
 * files, which stands for the directory). KVS_E_NOTFOUND: a file is missing; KVS_E_IO: it can't be
 * read; KVS_E_FORMAT: malformed, or a hyper-parameter or tensor does not fit (the message names it
 * and its value); KVS_E_UNSUPPORTED: an architecture, tensor type or option that is not
 * implemented. */
KVS_API kvs_status kvs_model_open(kvs_ctx *ctx, const char *path, const kvs_model_opts *opts,
                                  kvs_model **out, kvs_err *err);
KVS_API void kvs_model_close(kvs_model *model); /* NULL is fine */

/* All zero where KVS_MODEL_INSPECT met an unknown architecture. */
typedef struct kvs_model_info {
    size_t struct_size;
    char arch[32];
    char name[96];
    uint32_t n_layers;
    uint32_t d_model;
    uint32_t d_ff;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t k_dim; /* of one head */
    uint32_t v_dim;
    uint32_t n_vocab;
    uint32_t n_ctx_train;    /* context length it was trained for */
    uint32_t window;         /* of the layers that have one; 0: none has */
    uint64_t n_params;       /* elements of all tensors */
    uint64_t file_bytes;     /* of all weight files */
    uint64_t weight_bytes;   /* of all tensors */
    uint64_t step_bytes;     /* of the weights that one token reads */
    uint32_t n_experts;      /* of a mixture layer; 0: none is */
    uint32_t n_experts_used; /* for each token */
} kvs_model_info;
#define KVS_MODEL_INFO_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_model_info), "", "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0             \
    }
KVS_API kvs_status kvs_model_get_info(const kvs_model *model, kvs_model_info *out);

/* Newest tokens that a query of this layer sees, 0: all. */
KVS_API uint32_t kvs_model_window(const kvs_model *model, uint32_t layer);

/* NULL when the file has none. Dies with the model. */
KVS_API const kvs_tokenizer *kvs_model_tokenizer(const kvs_model *model);

/* Text of metadata entry i as "key", "type" and "value" (long ones cut, arrays by length and first
 * elements), for people. KVS_NO past the end. Each buffer gets a NUL. */
typedef struct kvs_model_entry {
    size_t struct_size;
    char key[128];
    char type[16];
    char value[256];
} kvs_model_entry;
#define KVS_MODEL_ENTRY_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_model_entry), "", "", ""                                                        \
    }
KVS_API kvs_status kvs_model_get_entry(const kvs_model *model, size_t i, kvs_model_entry *out);
/* A string value in full, borrowed from the model, not terminated; NULL when there is none. */
KVS_API const char *kvs_model_string(const kvs_model *model, const char *key, size_t *n_bytes);

/* A quantised weight of safetensors is one tensor, "affine4:64", scales and biases included. */
typedef struct kvs_model_tensor {
    size_t struct_size;
    char name[128]; /* as in the file */
    char type[16];
    uint64_t dims[4]; /* fastest first, unused ones 1 */
    uint64_t bytes;
} kvs_model_tensor;
#define KVS_MODEL_TENSOR_INIT                                                                      \
    {                                                                                              \
        sizeof(kvs_model_tensor), "", "", {0, 0, 0, 0}, 0                                          \
    }
/* KVS_NO past the end. */
KVS_API kvs_status kvs_model_get_tensor(const kvs_model *model, size_t i, kvs_model_tensor *out);

#ifdef __cplusplus
}
#endif
#endif
