/* SPDX-License-Identifier: MIT */
/* hf.h: a model directory as Hugging Face and MLX write it: config.json, one or several safetensors
 * files, with an index where there are several, and files of the tokenizer, which are not read
 * here. Opening checks what is there: every shard, every tensor once, every triple of a quantised
 * weight against the bits and groups of config.json. */
#ifndef KVS_ENGINE_HF_H
#define KVS_ENGINE_HF_H

#include "engine/json.h"
#include "engine/net.h"
#include "engine/safetensors.h"
#include "engine/source.h"

#define KVS__HF_CONFIG_MOST ((size_t)4 << 20)  /* bytes of config.json; real ones have a few KB */
#define KVS__HF_INDEX_MOST  ((size_t)16 << 20) /* bytes of an index; 200 bytes a tensor */
#define KVS__HF_SHARDS_MOST 1024u

/* What tells one model_type from another in names and numbers; hf_config.c has the table. */
typedef struct kvs__hf_family {
    const char *model_type; /* in config.json */
    const char *arch;       /* the engine's name */
    uint32_t flags;         /* KVS__HF_* */
    kvs__rope_style rope_style;
} kvs__hf_family;

enum {
    KVS__HF_NORM_PLUS_ONE = 1u << 0, /* norms are stored minus one */
    KVS__HF_FOUR_NORMS = 1u << 1,    /* a norm before and after each block */
    KVS__HF_FUSED = 1u << 2,         /* qkv_proj, gate_up_proj */
    KVS__HF_WINDOW = 1u << 3,        /* sliding_window is heeded */
    KVS__HF_MIXTRAL = 1u << 4,       /* block_sparse_moe.experts.N.w1 ... */
    KVS__HF_DELTA = 1u << 5,         /* linear_attn; norms minus one where the file is no MLX one */
    KVS__HF_MAMBA = 1u << 6,         /* backbone.layers.N.mixer */
    KVS__HF_GEMMA4 = 1u << 7,
    KVS__HF_GRANITE = 1u << 8 /* mamba, shared_mlp, block_sparse_moe */
};

typedef struct kvs__hf kvs__hf;

/* dir: the directory, or a .safetensors file in it. */
kvs_status kvs__hf_open(kvs_ctx *ctx, const char *path, kvs__hf **out, kvs_err *err);
void kvs__hf_close(kvs__hf *hf); /* NULL is fine */

/* Metadata by the engine's keys as a GGUF file in memory, which dies with hf. An unknown model_type
 * gets general.architecture and what config.json says, no more. */
void kvs__hf_meta(const kvs__hf *hf, const void **bytes, size_t *n);
/* NULL: the model_type is unknown. */
const kvs__hf_family *kvs__hf_get_family(const kvs__hf *hf);
kvs__jval kvs__hf_config(const kvs__hf *hf);
/* Of all safetensors files together. */
uint64_t kvs__hf_file_bytes(const kvs__hf *hf);
/* The directory, without a slash at the end. */
const char *kvs__hf_dir(const kvs__hf *hf);

/* KVS_E_UNSUPPORTED, with its name, when a tensor of the decoder's layers was asked for by no find:
 * ignoring it would compute something else than the model. Call when all weights are found. */
kvs_status kvs__hf_check_used(const kvs__hf *hf, kvs_err *err);

/* As in source.h. find and expert remember what was asked for, so they belong to opening. */
bool kvs__hf_find(const kvs__hf *hf, const char *name, kvs__tensor *out);
bool kvs__hf_expert(const kvs__hf *hf, const char *name, uint32_t e, kvs__tensor *out);
bool kvs__hf_at(const kvs__hf *hf, size_t i, kvs__tensor *out);
kvs__source_label kvs__hf_name(const kvs__hf *hf, const char *name);

#endif
