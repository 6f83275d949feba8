/* SPDX-License-Identifier: MIT */
/* hf_priv.h: what the files that read a model directory share. Not for others. */
#ifndef KVS_ENGINE_HF_PRIV_H
#define KVS_ENGINE_HF_PRIV_H

#include "engine/gguf_priv.h"
#include "engine/hf.h"

/* A tensor of any shard. */
typedef struct kvs__hf_tensor {
    kvs__str name;
    const kvs__st_tensor *t;
    uint32_t bits;  /* of an affine weight, 0: it is stored as it is */
    uint32_t group; /* elements that share a scale */
    bool part;      /* scales or biases of another tensor: not listed */
    bool used;      /* was asked for while the model was opened */
} kvs__hf_tensor;

typedef struct kvs__hf_shard {
    kvs__safetensors *file;
    char name[128];
} kvs__hf_shard;

struct kvs__hf {
    kvs_ctx *ctx;
    char *dir;
    size_t dir_bytes;
    kvs__json *config;
    kvs__json *generation; /* or NULL */
    const kvs__hf_family *family;
    kvs__hf_shard *shards;
    size_t cap_shards, n_shards;
    kvs__hf_tensor *tensors;
    size_t n_tensors;
    uint32_t *listed; /* [n_tensors], n_listed filled: those that are no part of another */
    size_t n_listed;
    kvs__gguf_names index;
    const char *prefix; /* of the decoder's tensors: "model." */
    const char *head;   /* name of the output matrix */
    bool plus_one;      /* norms are stored minus one */
    uint8_t *meta;
    size_t meta_cap, meta_bytes;
    float *rope_factors; /* [n_rope_factors], divisors of frequencies, made from config.json */
    size_t n_rope_factors;
    bool rope_is_long; /* two lists: of long contexts, of short ones */
};

/* hf_shards.c: opens the shards and lists their tensors. `single`: the file's name where the
 * directory has no index. */
kvs_status kvs__hf_open_shards(kvs__hf *hf, const char *single, kvs_err *err);
kvs__hf_tensor *kvs__hf_lookup(const kvs__hf *hf, const char *name, size_t len);
/* "dir/name", NULL: out of memory. Freed by kvs__free with *bytes. */
char *kvs__hf_path(const kvs__hf *hf, const char *name, size_t *bytes);

/* hf_tensor.c: marks affine triples after the quantisation in config.json and checks them. */
kvs_status kvs__hf_mark_affine(kvs__hf *hf, kvs_err *err);
void kvs__hf_describe(const kvs__hf_tensor *t, const kvs__hf *hf, kvs__tensor *out);

/* hf_config.c: config.json to hf->meta. */
kvs_status kvs__hf_find_family(kvs__hf *hf, kvs_err *err);
kvs_status kvs__hf_write_meta(kvs__hf *hf, kvs_err *err);
/* The part of config.json that describes the decoder: text_config where there is one. */
kvs__jval kvs__hf_text_config(const kvs__hf *hf);

/* hf_names.c: tensor i of the divisors of rotary frequencies, which are made from config.json and
 * listed after those of the files; false: there is no such one. */
bool kvs__hf_rope_tensor(const kvs__hf *hf, size_t i, kvs__tensor *out);

/* Prefix and head from what is there. */
kvs_status kvs__hf_find_names(kvs__hf *hf, kvs_err *err);

/* ---- hf_meta.c: writes GGUF metadata into hf->meta */
kvs_status kvs__meta_begin(kvs__hf *hf, kvs_err *err);
kvs_status kvs__meta_u32(kvs__hf *hf, const char *key, uint32_t v, kvs_err *err);
kvs_status kvs__meta_f32(kvs__hf *hf, const char *key, float v, kvs_err *err);
kvs_status kvs__meta_bool(kvs__hf *hf, const char *key, bool v, kvs_err *err);
kvs_status kvs__meta_str(kvs__hf *hf, const char *key, const char *v, kvs_err *err);
/* Scalars of a JSON object, and of objects and arrays in it, as prefix.name ... */
kvs_status kvs__meta_json(kvs__hf *hf, const char *prefix, kvs__jval v, kvs_err *err);

#endif
