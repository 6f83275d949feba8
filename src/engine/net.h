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
#include "kvstate/cache.h"
#include "kvstate/model.h"
#include "kvstate/recurrent.h"

/* Which elements of a head turn together. */
typedef enum kvs__rope_style {
    KVS__ROPE_PAIRS = 0, /* 2i and 2i + 1 */
    KVS__ROPE_HALVES = 1 /* i and i + n_rot / 2 */
} kvs__rope_style;

typedef enum kvs__act {
    KVS__ACT_SILU = 0,
    KVS__ACT_GELU = 1 /* tanh form */
} kvs__act;

/* How the frequencies of a rotary encoding are stretched beyond the length of the training. */
typedef enum kvs__rope_kind {
    KVS__ROPE_PLAIN = 0,
    KVS__ROPE_LINEAR = 1,  /* positions divided by the factor */
    KVS__ROPE_DYNAMIC = 2, /* NTK: the base grows with the length of the context */
    KVS__ROPE_YARN = 3,    /* fast pairs stay, slow ones are divided, a ramp between */
    KVS__ROPE_LLAMA3 = 4,  /* the same by wavelengths */
    KVS__ROPE_LONG = 5,    /* a divisor for each pair: one list for short, one for long contexts */
    KVS__ROPE_PROPORTIONAL = 6 /* only a part of the pairs turns, with the frequencies of all */
} kvs__rope_kind;

/* Rotary encodings of a model: layers name one by index. Two suffice (global, local). */
#define KVS__MAX_ROPES 2u
typedef struct kvs__rope {
    uint32_t n_rot; /* elements of a head that are turned, even; the first ones */
    float base;
    kvs__rope_kind kind;
    float factor;               /* by which the context was stretched */
    float turn;                 /* cosines and sines are multiplied by it; 0: as the kind says */
    float turn_mul;             /* and by it; longrope: by it alone; 0: not given */
    uint32_t n_ctx_train;       /* context length that the model is made for */
    uint32_t n_ctx_orig;        /* and that before stretching */
    float beta_fast, beta_slow; /* yarn: turns within n_ctx_orig between which the ramp lies */
    float mscale, mscale_all;   /* yarn: of the magnitude; 0: not given */
    float low, high;            /* llama3: wavelengths are compared to n_ctx_orig over these */
    float part;                 /* proportional: of the pairs that turn */
    const float *factors;       /* [n_rot / 2] divisors of the frequencies, or NULL */
    const float *short_factors; /* long: those of contexts up to n_ctx_orig */
} kvs__rope;

/* rope.c: freq [n_rot / 2] in radians per position, for sequences of up to n_ctx tokens; returns
 * what cosines and sines are multiplied by. */
float kvs__rope_freqs(const kvs__rope *rope, uint32_t n_ctx, double *freq);
/* What yarn multiplies the scale of scores by where the model asks for it. */
float kvs__rope_score_scale(const kvs__rope *rope);

/* Kinds of the two blocks of a layer (block.h). */
typedef enum kvs__mixer_kind {
    KVS__MIX_ATTENTION = 0,
    KVS__MIX_LATENT = 1,
    KVS__MIX_RECURRENT = 2
} kvs__mixer_kind;

typedef enum kvs__ffn_kind {
    KVS__FFN_DENSE = 0,
    KVS__FFN_MOE = 1,
    KVS__FFN_NONE = 2 /* the mixer is all of the layer */
} kvs__ffn_kind;

/* Multi-head latent attention: keys and values of all heads are made from one row a token. */
typedef struct kvs__latent {
    uint32_t q_rank;           /* 0: queries come from the stream directly */
    uint32_t rank;             /* elements of the row beside its rotary part */
    uint32_t nope, rot, v_dim; /* of a head: key without and with rotary encoding, value */
    float eps;                 /* of the norms of low-rank rows */
    kvs__wrows q_a, q_b, kv_a; /* [q_rank] [n_heads * (nope + rot)] [rank + rot] */
    const float *q_a_norm;     /* [q_rank] */
    const float *kv_a_norm;    /* [rank] */
    /* Either kv_b, rows [n_heads][nope + v_dim] of rank, or k_b, [n_heads][rank] of nope, and v_b,
     * [n_heads][v_dim] of rank. */
    kvs__wrows kv_b, k_b, v_b;
} kvs__latent;

/* A gated delta rule or Mamba-2 (kvstate/recurrent.h): projections in, a convolution, the rule, a
 * gated norm. Widths: keys = n_groups * state_dim, values = n_heads * head_dim. */
typedef struct kvs__recurrent {
    kvs_recurrent_spec spec; /* without undo, which is a plan's */
    uint32_t norm_groups;    /* parts of `values` that are normed each by itself */
    bool by_group;           /* delta: mixed instead of x and z, ... */
    bool ba_by_group;        /* ... ba instead of b and a */
    /* Rows of the groups one after another: q, k [state_dim] v, z [heads of it * head_dim], and
     * b, a [heads of it]. */
    kvs__wrows mixed, ba;
    kvs__wrows x;           /* [conv_dim]: delta q, k, v; SSD x, B, C */
    kvs__wrows z;           /* [values] */
    kvs__wrows a, b;        /* [n_heads]; SSD: a alone */
    const float *conv;      /* [conv_taps][conv_dim] */
    const float *conv_bias; /* [conv_dim] or NULL */
    const float *decay;     /* [n_heads] */
    const float *dt_bias;   /* [n_heads] */
    const float *d;         /* [n_heads] or NULL */
    const float *norm;      /* [values], or [head_dim] of all heads alike: delta */
    float dt_min, dt_max;   /* 0, 0: no limits */
} kvs__recurrent;

/* A mixture of experts: `used` of n gated feed-forwards for each token, and a shared one. */
typedef struct kvs__moe {
    uint32_t n, used, d_ff;
    uint32_t n_groups, groups_used; /* experts of the best groups alone are chosen; 1, 1: all */
    uint32_t d_shared;              /* 0: no shared one */
    bool gated;                     /* the shared one is scaled by a sigmoid of shared_router */
    bool normalise;                 /* weights of the chosen sum to 1 */
    float scale;                    /* of the weights, after that */
    kvs__wrows router;              /* [n] */
    kvs__wrows *expert;             /* [n][3]: gate, up [d_ff], down [d_model] */
    kvs__wrows shared_gate, shared_up, shared_down;
    kvs__wrows shared_router; /* [1] */
} kvs__moe;

/* Layers may differ in all of it. One matrix: y = x W^T. rows.n outputs, rows.k inputs; rows.data
 * NULL: absent. */
typedef struct kvs__layer {
    kvs__mixer_kind mixer;
    kvs__ffn_kind ffn;
    uint32_t n_heads, n_kv_heads, k_dim, v_dim, d_ff;
    uint32_t window;             /* newest tokens that a query sees; 0: all */
    uint32_t rope;               /* index into net.ropes */
    float attn_scale;            /* of q k^T */
    kvs__wrows wq, wk, wv, wo;   /* [n_heads * k_dim | n_kv * k_dim | n_kv * v_dim | d_model] */
    kvs__wrows gate, up, down;   /* [d_ff] [d_ff] [d_model] */
    const float *attn_norm;      /* [d_model] */
    const float *ffn_norm;       /* [d_model] */
    const float *q_norm;         /* [k_dim], or [n_heads * k_dim] with wide_norm, or NULL */
    const float *k_norm;         /* likewise */
    const float *post_attn_norm; /* [d_model] or NULL */
    const float *post_ffn_norm;  /* [d_model] or NULL */
    const float *bq, *bk, *bv;   /* or NULL */
    const float *bo;             /* [d_model] or NULL */
    bool wide_norm;              /* q and k are normed over all heads at once */
    bool gated;                  /* wq holds a gate beside each head: [n_heads][q, gate][k_dim] */
    bool v_norm;                 /* values are normed too, without a weight */
    bool same_kv;                /* values are the keys before norm and rotation; no wv */
    bool borrows;                /* no keys and values of its own: those of layer `donor` */
    uint32_t donor;
    kvs__latent latent;       /* KVS__MIX_LATENT */
    kvs__recurrent recurrent; /* KVS__MIX_RECURRENT */
    kvs__moe moe;             /* KVS__FFN_MOE */
    /* After the feed-forward: an input of this layer's own (net.side), and a factor. */
    kvs__wrows side_gate;   /* [d_side] */
    kvs__wrows side_proj;   /* [d_model] */
    const float *side_norm; /* [d_model] */
    const float *out_scale; /* [1] or NULL */
} kvs__layer;

typedef struct kvs__net {
    uint32_t n_layers, d_model, n_vocab, n_ctx_train;
    float rms_eps;
    float embed_scale;   /* 1 for most */
    float block_scale;   /* of what a block adds to the stream; 1 for most */
    float logit_scale;   /* 1 for most */
    float logit_softcap; /* 0: none */
    float attn_softcap;
    kvs__rope_style rope_style;
    kvs__act act;
    uint32_t n_ropes;
    kvs__rope ropes[KVS__MAX_ROPES];
    kvs__wrows embed;  /* [n_vocab] rows of d_model */
    kvs__wrows output; /* [n_vocab]; the embedding where it is tied */
    const float *output_norm;
    /* An input of each layer: rows of an embedding of its own, [n_layers][d_side] a token, plus the
     * normed product of the stream's first row. 0: there is none. */
    uint32_t d_side;
    kvs__wrows side_embed;  /* [n_vocab] rows of n_layers * d_side */
    kvs__wrows side_model;  /* [n_layers * d_side] */
    const float *side_norm; /* [d_side] */
    float side_scale;       /* of the embedding */
    const float *ones;      /* [as many as the longest norm without a weight] */
    uint32_t n_ones;
    kvs__layer usual;   /* what layers are made from before the architecture changes them */
    kvs__layer *layers; /* [n_layers] */
} kvs__net;

/* What layer i keeps, in the usual codecs and a growing layout. */
void kvs__net_layer_spec(const kvs__net *net, uint32_t i, kvs_layer_spec *out);

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
