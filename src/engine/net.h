/* SPDX-License-Identifier: MIT */
/* net.h: an open model as the engine sees it: hyper-parameters and weights of a decoder-only
 * transformer, resolved and checked once. graph.c walks it; an architecture (arch.h) fills in what
 * differs. Nothing here changes after opening. */
#ifndef KVS_ENGINE_NET_H
#define KVS_ENGINE_NET_H

#include "base/base.h"
#include "engine/gguf.h"
#include "engine/source.h"
#include "kern/wmat.h"
#include "kvstate/model.h"

/* Which elements of a head turn together. */
typedef enum kvs__rope_style {
    KVS__ROPE_PAIRS = 0, /* 2i and 2i + 1 */
    KVS__ROPE_HALVES = 1 /* i and i + n_rot / 2 */
} kvs__rope_style;

typedef enum kvs__act {
    KVS__ACT_SILU = 0,
    KVS__ACT_GELU = 1 /* tanh form */
} kvs__act;

/* Rotary encodings of a model: layers name one by index. Two suffice (global, local). */
#define KVS__MAX_ROPES 2u
typedef struct kvs__rope {
    float base;
    float position_scale; /* linear scaling: positions are multiplied by it */
    const float *factors; /* [n_rot / 2] divisors of the frequencies, or NULL */
} kvs__rope;

/* One matrix: y = x W^T. rows.n outputs, rows.k inputs; rows.data NULL: absent. */
typedef struct kvs__layer {
    kvs__wrows wq, wk, wv, wo;   /* [n_heads * k_dim | n_kv * k_dim | n_kv * v_dim | d_model] */
    kvs__wrows gate, up, down;   /* [d_ff] [d_ff] [d_model] */
    const float *attn_norm;      /* [d_model] */
    const float *ffn_norm;       /* [d_model] */
    const float *q_norm;         /* [k_dim] or NULL */
    const float *k_norm;         /* [k_dim] or NULL */
    const float *post_attn_norm; /* [d_model] or NULL */
    const float *post_ffn_norm;  /* [d_model] or NULL */
    const float *bq, *bk, *bv;   /* or NULL */
    uint32_t window;             /* newest tokens that a query sees; 0: all */
    uint32_t rope;               /* index into net.ropes */
} kvs__layer;

typedef struct kvs__net {
    uint32_t n_layers, d_model, d_ff, n_vocab, n_ctx_train;
    uint32_t n_heads, n_kv_heads, k_dim, v_dim;
    uint32_t n_rot; /* elements of a head that are turned, even */
    float rms_eps;
    float embed_scale;   /* 1 for most */
    float attn_scale;    /* of q k^T */
    float logit_softcap; /* 0: none */
    float attn_softcap;
    kvs__rope_style rope_style;
    kvs__act act;
    uint32_t n_ropes;
    kvs__rope ropes[KVS__MAX_ROPES];
    kvs__wrows embed;  /* [n_vocab] rows of d_model */
    kvs__wrows output; /* [n_vocab]; the embedding where it is tied */
    const float *output_norm;
    kvs__layer *layers; /* [n_layers] */
} kvs__net;

struct kvs_model {
    kvs_ctx *ctx;
    kvs__gguf *gguf;    /* metadata; of a GGUF file the tensors too */
    kvs__source source; /* tensors and metadata of either kind of file */
    kvs_tokenizer *tok;
    const struct kvs__arch *arch; /* NULL: opened for inspection and unknown */
    kvs__net net;                 /* zero without an arch */
    float *vectors;               /* norms, biases and factors as f32, one after another */
    size_t vectors_bytes;
    size_t vectors_used; /* elements */
    kvs_model_info info;
};

#endif
