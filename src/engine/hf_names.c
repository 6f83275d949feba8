/* SPDX-License-Identifier: MIT */
/* hf_names.c: from the engine's tensor names to those of Hugging Face and MLX checkpoints.
 *
 * A layer's tensor is prefix + "layers.N." + a name from a table; families that differ have rows of
 * their own before the common ones. The prefix depends on who wrote the file (a text model, the
 * text part of one that sees, old or new versions of the libraries) and is found by looking. */
#include <stdio.h>
#include <string.h>

#include "engine/hf_priv.h"

enum { NORM = 1, WHOLE = 2 }; /* WHOLE: the file's name has no .weight or .bias after it */

typedef struct rule {
    const char *engine; /* after "blk.N.", without .weight or .bias */
    const char *hf;     /* after prefix "layers.N." */
    uint32_t flags;     /* of the family: all of them set */
    uint32_t kind;
} rule;

static const rule layer_rules[] = {
    {"ffn_norm", "pre_feedforward_layernorm", KVS__HF_FOUR_NORMS, NORM},
    {"post_attention_norm", "post_attention_layernorm", KVS__HF_DELTA, NORM},
    {"attn_qkv", "linear_attn.in_proj_qkv", KVS__HF_DELTA, 0},
    {"attn_gate", "linear_attn.in_proj_z", KVS__HF_DELTA, 0},
    {"ssm_in", "linear_attn.in_proj_qkvz", KVS__HF_DELTA, 0},
    {"ssm_ba", "linear_attn.in_proj_ba", KVS__HF_DELTA, 0},
    {"ssm_alpha", "linear_attn.in_proj_a", KVS__HF_DELTA, 0},
    {"ssm_beta", "linear_attn.in_proj_b", KVS__HF_DELTA, 0},
    {"ssm_conv1d", "linear_attn.conv1d", KVS__HF_DELTA, 0},
    {"ssm_dt", "linear_attn.dt_bias", KVS__HF_DELTA, WHOLE},
    {"ssm_a", "linear_attn.A_log", KVS__HF_DELTA, 0},
    {"ssm_norm", "linear_attn.norm", KVS__HF_DELTA, 0},
    {"ssm_out", "linear_attn.out_proj", KVS__HF_DELTA, 0},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", KVS__HF_DELTA, 0},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj", KVS__HF_DELTA, 0},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj", KVS__HF_DELTA, 0},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj", KVS__HF_DELTA, 0},
    {"attn_norm", "norm", KVS__HF_MAMBA, NORM},
    {"ssm_in", "mixer.in_proj", KVS__HF_MAMBA, 0},
    {"ssm_conv1d", "mixer.conv1d", KVS__HF_MAMBA, 0},
    {"ssm_dt", "mixer.dt_bias", KVS__HF_MAMBA, WHOLE},
    {"ssm_a", "mixer.A_log", KVS__HF_MAMBA, 0},
    {"ssm_d", "mixer.D", KVS__HF_MAMBA, 0},
    {"ssm_norm", "mixer.norm", KVS__HF_MAMBA, 0},
    {"ssm_out", "mixer.out_proj", KVS__HF_MAMBA, 0},
    {"ssm_in", "mamba.in_proj", KVS__HF_GRANITE, 0},
    {"ssm_conv1d", "mamba.conv1d", KVS__HF_GRANITE, 0},
    {"ssm_dt", "mamba.dt_bias", KVS__HF_GRANITE, WHOLE},
    {"ssm_a", "mamba.A_log", KVS__HF_GRANITE, 0},
    {"ssm_d", "mamba.D", KVS__HF_GRANITE, 0},
    {"ssm_norm", "mamba.norm", KVS__HF_GRANITE, 0},
    {"ssm_out", "mamba.out_proj", KVS__HF_GRANITE, 0},
    {"ffn_gate_inp", "block_sparse_moe.router.layer", KVS__HF_GRANITE, 0},
    {"ffn_gate_up_shexp", "shared_mlp.input_linear", KVS__HF_GRANITE, 0},
    {"ffn_down_shexp", "shared_mlp.output_linear", KVS__HF_GRANITE, 0},
    {"inp_gate", "per_layer_input_gate", KVS__HF_GEMMA4, 0},
    {"proj", "per_layer_projection", KVS__HF_GEMMA4, 0},
    {"post_norm", "post_per_layer_input_norm", KVS__HF_GEMMA4, NORM},
    {"layer_output_scale", "layer_scalar", KVS__HF_GEMMA4, WHOLE},
    {"post_attention_norm", "post_attention_layernorm", KVS__HF_FOUR_NORMS, NORM},
    {"post_ffw_norm", "post_feedforward_layernorm", KVS__HF_FOUR_NORMS, NORM},
    {"attn_qkv", "self_attn.qkv_proj", KVS__HF_FUSED, 0},
    {"ffn_up", "mlp.gate_up_proj", KVS__HF_FUSED, 0},
    {"ffn_gate_inp", "block_sparse_moe.gate", KVS__HF_MIXTRAL, 0},
    {"attn_norm", "input_layernorm", 0, NORM},
    {"ffn_norm", "post_attention_layernorm", 0, NORM},
    {"attn_q", "self_attn.q_proj", 0, 0},
    {"attn_k", "self_attn.k_proj", 0, 0},
    {"attn_v", "self_attn.v_proj", 0, 0},
    {"attn_output", "self_attn.o_proj", 0, 0},
    {"attn_q_norm", "self_attn.q_norm", 0, NORM},
    {"attn_k_norm", "self_attn.k_norm", 0, NORM},
    {"ffn_gate", "mlp.gate_proj", 0, 0},
    {"ffn_up", "mlp.up_proj", 0, 0},
    {"ffn_down", "mlp.down_proj", 0, 0},
    {"ffn_gate_inp", "mlp.gate", 0, 0},
    {"exp_probs_b", "mlp.gate.e_score_correction_bias", 0, WHOLE},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj", 0, 0},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj", 0, 0},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj", 0, 0},
    /* latent attention */
    {"attn_q_a", "self_attn.q_a_proj", 0, 0},
    {"attn_q_a_norm", "self_attn.q_a_layernorm", 0, NORM},
    {"attn_q_b", "self_attn.q_b_proj", 0, 0},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", 0, 0},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm", 0, NORM},
    {"attn_kv_b", "self_attn.kv_b_proj", 0, 0},
    {"attn_k_b", "self_attn.embed_q", 0, 0},
    {"attn_v_b", "self_attn.unembed_out", 0, 0},
};

/* Experts: one tensor for all, as MLX stacks them, or one for each. */
static const struct {
    const char *engine;
    const char *stacked;
    const char *before, *after; /* around the expert's number */
    uint32_t flags;
} expert_rules[] = {
    {"ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj", "block_sparse_moe.experts.", ".w1",
     KVS__HF_MIXTRAL},
    {"ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj", "block_sparse_moe.experts.", ".w3",
     KVS__HF_MIXTRAL},
    {"ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj", "block_sparse_moe.experts.", ".w2",
     KVS__HF_MIXTRAL},
    {"ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj", "block_sparse_moe.experts.",
     ".gate_proj", KVS__HF_GRANITE},
    {"ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj", "block_sparse_moe.experts.", ".up_proj",
     KVS__HF_GRANITE},
    {"ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj", "block_sparse_moe.experts.",
     ".down_proj", KVS__HF_GRANITE},
    {"ffn_gate_exps", "mlp.switch_mlp.gate_proj", "mlp.experts.", ".gate_proj", 0},
    {"ffn_up_exps", "mlp.switch_mlp.up_proj", "mlp.experts.", ".up_proj", 0},
    {"ffn_down_exps", "mlp.switch_mlp.down_proj", "mlp.experts.", ".down_proj", 0},
};

/* A name taken apart: blk.<layer>.<stem>.<tail>; layer -1 where it is no layer's. */
typedef struct parts {
    long layer;
    char stem[64];
    const char *tail; /* ".weight", ".bias", "" */
} parts;

static bool take_apart(const char *name, parts *p)
{
    p->layer = -1;
    if (strncmp(name, "blk.", 4) == 0) {
        long n = 0;
        const char *s = name + 4;
        for (; *s >= '0' && *s <= '9' && n < 100000; s++) {
            n = n * 10 + (*s - '0');
        }
        if (*s != '.') {
            return false;
        }
        p->layer = n;
        name = s + 1;
    }
    const char *dot = strrchr(name, '.');
    p->tail = dot ? dot : name + strlen(name);
    size_t len = (size_t)(p->tail - name);
    if (len >= sizeof p->stem) {
        return false;
    }
    memcpy(p->stem, name, len);
    p->stem[len] = '\0';
    return true;
}

static uint32_t flags_of(const kvs__hf *hf)
{
    return hf->family ? hf->family->flags : 0;
}

static const rule *find_rule(const kvs__hf *hf, const char *stem)
{
    for (size_t i = 0; i < KVS_COUNT(layer_rules); i++) {
        const rule *r = &layer_rules[i];
        if ((flags_of(hf) & r->flags) == r->flags && strcmp(stem, r->engine) == 0) {
            return r;
        }
    }
    return NULL;
}

/* The file's name of what belongs to no layer, after the prefix; NULL: there is no rule. */
static const char *find_end(const kvs__hf *hf, const char *stem)
{
    static const rule rules[] = {
        {"token_embd", "embeddings", KVS__HF_MAMBA, 0},
        {"output_norm", "norm_f", KVS__HF_MAMBA, 0},
        {"per_layer_token_embd", "embed_tokens_per_layer", KVS__HF_GEMMA4, 0},
        {"per_layer_model_proj", "per_layer_model_projection", KVS__HF_GEMMA4, 0},
        {"per_layer_proj_norm", "per_layer_projection_norm", KVS__HF_GEMMA4, 0},
        {"token_embd", "embed_tokens", 0, 0},
        {"output_norm", "norm", 0, 0},
    };
    for (size_t i = 0; i < KVS_COUNT(rules); i++) {
        if ((flags_of(hf) & rules[i].flags) == rules[i].flags &&
            strcmp(stem, rules[i].engine) == 0) {
            return rules[i].hf;
        }
    }
    return NULL;
}

typedef struct found {
    char name[160];
    bool is_norm;
} found;

/* The file's name for a tensor; empty where there is no rule. */
static found translate(const kvs__hf *hf, const char *name)
{
    found f = {"", false};
    parts p;
    if (!take_apart(name, &p)) {
        return f;
    }
    if (p.layer < 0) {
        const char *end = find_end(hf, p.stem);
        if (end) {
            (void)snprintf(f.name, sizeof f.name, "%s%s%s", hf->prefix, end, p.tail);
            f.is_norm = strcmp(p.stem, "output_norm") == 0;
        } else if (strcmp(p.stem, "output") == 0 && hf->head) {
            (void)snprintf(f.name, sizeof f.name, "%s%s", hf->head, p.tail);
        }
        return f;
    }
    const rule *r = find_rule(hf, p.stem);
    if (r) {
        (void)snprintf(f.name, sizeof f.name, "%slayers.%ld.%s%s", hf->prefix, p.layer, r->hf,
                       r->kind == WHOLE ? "" : p.tail);
        f.is_norm = r->kind == NORM;
        return f;
    }
    for (size_t i = 0; i < KVS_COUNT(expert_rules); i++) {
        if ((flags_of(hf) & expert_rules[i].flags) == expert_rules[i].flags &&
            strcmp(p.stem, expert_rules[i].engine) == 0) {
            (void)snprintf(f.name, sizeof f.name, "%slayers.%ld.%s%s", hf->prefix, p.layer,
                           expert_rules[i].stacked, p.tail);
            break;
        }
    }
    return f;
}

static const char *const rope_names[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                         "rope_factors_short.weight"};

/* Divisors of rotary frequencies, made from config.json, under the names that GGUF files have. */
static bool rope_tensor(const kvs__hf *hf, size_t which, kvs__tensor *out)
{
    if (!hf->rope_factors || hf->rope_is_long != (which > 0)) {
        return false;
    }
    size_t n = which > 0 ? hf->n_rope_factors / 2 : hf->n_rope_factors;
    *out = (kvs__tensor){.name = {rope_names[which], strlen(rope_names[which])},
                         .type_name = "F32",
                         .is_weight = true,
                         .type = KVS__W_F32,
                         .n_dims = 1,
                         .ne = {n, 1, 1, 1},
                         .n_rows = 1,
                         .row_bytes = n * sizeof(float),
                         .bytes = n * sizeof(float),
                         .data = (const uint8_t *)(hf->rope_factors + (which == 2 ? n : 0))};
    return true;
}

bool kvs__hf_rope_tensor(const kvs__hf *hf, size_t i, kvs__tensor *out)
{
    size_t n = hf->rope_is_long ? 2 : 1;
    return i < n && rope_tensor(hf, hf->rope_is_long ? i + 1 : i, out);
}

bool kvs__hf_find(const kvs__hf *hf, const char *name, kvs__tensor *out)
{
    if (strncmp(name, "rope_", 5) == 0) {
        for (size_t i = 0; i < KVS_COUNT(rope_names); i++) {
            if (strcmp(name, rope_names[i]) == 0) {
                return rope_tensor(hf, i, out);
            }
        }
        return false;
    }
    found f = translate(hf, name);
    kvs__hf_tensor *t = f.name[0] ? kvs__hf_lookup(hf, f.name, strlen(f.name)) : NULL;
    if (!t) {
        return false;
    }
    t->used = true;
    kvs__hf_describe(t, hf, out);
    out->plus = f.is_norm && hf->plus_one ? 1.0f : 0.0f;
    return true;
}

bool kvs__hf_expert(const kvs__hf *hf, const char *name, uint32_t e, kvs__tensor *out)
{
    parts p;
    if (!take_apart(name, &p) || p.layer < 0) {
        return false;
    }
    for (size_t i = 0; i < KVS_COUNT(expert_rules); i++) {
        if ((flags_of(hf) & expert_rules[i].flags) != expert_rules[i].flags ||
            strcmp(p.stem, expert_rules[i].engine) != 0) {
            continue;
        }
        char own[160];
        (void)snprintf(own, sizeof own, "%slayers.%ld.%s%u%s%s", hf->prefix, p.layer,
                       expert_rules[i].before, e, expert_rules[i].after, p.tail);
        kvs__hf_tensor *t = kvs__hf_lookup(hf, own, strlen(own));
        if (t) {
            t->used = true;
            kvs__hf_describe(t, hf, out);
            return true;
        }
        break;
    }
    return false;
}

/* Buffers that some versions of the libraries saved; nobody reads them. */
static bool is_buffer(kvs__str name)
{
    static const char tail[] = "rotary_emb.inv_freq";
    size_t n = sizeof tail - 1;
    return name.len >= n && memcmp(name.ptr + name.len - n, tail, n) == 0;
}

kvs_status kvs__hf_check_used(const kvs__hf *hf, kvs_err *err)
{
    char layers[64];
    size_t n = (size_t)snprintf(layers, sizeof layers, "%slayers.", hf->prefix);
    for (size_t i = 0; i < hf->n_tensors; i++) {
        const kvs__hf_tensor *t = &hf->tensors[i];
        bool inside = t->name.len > n && memcmp(t->name.ptr, layers, n) == 0;
        if (inside && !t->used && !t->part && !is_buffer(t->name)) {
            return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                             "tensor %s is not used by architecture %s",
                             kvs__gguf_quote(t->name).text, hf->family->arch);
        }
    }
    return KVS_OK;
}

kvs__source_label kvs__hf_name(const kvs__hf *hf, const char *name)
{
    kvs__source_label l = {""};
    found f = translate(hf, name);
    (void)snprintf(l.text, sizeof l.text, "%s", f.name[0] ? f.name : name);
    return l;
}

/* MLX turns the weights of convolutions and adds the one to norms when it converts a file. */
static bool is_unturned(const kvs__hf *hf)
{
    static const char tail[] = "linear_attn.conv1d.weight";
    size_t n = sizeof tail - 1;
    for (size_t i = 0; i < hf->n_tensors; i++) {
        const kvs__hf_tensor *t = &hf->tensors[i];
        if (t->name.len > n && memcmp(t->name.ptr + t->name.len - n, tail, n) == 0) {
            return t->t->n_dims == 3 && t->t->dims[2] != 1;
        }
    }
    return false;
}

kvs_status kvs__hf_find_names(kvs__hf *hf, kvs_err *err)
{
    static const char *const prefixes[] = {"model.", "language_model.model.",
                                           "model.language_model.", ""};
    static const char *const heads[] = {"lm_head", "language_model.lm_head"};
    hf->prefix = prefixes[0];
    for (size_t i = 0; i < KVS_COUNT(prefixes); i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i]);
        if (kvs__hf_lookup(hf, name, strlen(name))) {
            hf->prefix = prefixes[i];
            break;
        }
    }
    hf->prefix = flags_of(hf) & KVS__HF_MAMBA ? "backbone." : hf->prefix;
    hf->plus_one =
        flags_of(hf) & KVS__HF_NORM_PLUS_ONE || (flags_of(hf) & KVS__HF_DELTA && is_unturned(hf));
    const char *head = NULL;
    for (size_t i = 0; i < KVS_COUNT(heads) && !head; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%s.weight", heads[i]);
        head = kvs__hf_lookup(hf, name, strlen(name)) ? heads[i] : NULL;
    }
    /* tied: a head that is stored as well is a copy; untied: there has to be one */
    kvs__jval tied = kvs__json_get(kvs__hf_text_config(hf), "tie_word_embeddings");
    if (!tied.doc) {
        tied = kvs__json_get(kvs__hf_config(hf), "tie_word_embeddings");
    }
    if (kvs__json_kind(tied) == KVS__JSON_FALSE && !head && hf->family) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "config.json says tie_word_embeddings is false, but there is no tensor "
                         "lm_head.weight");
    }
    hf->head = kvs__json_kind(tied) == KVS__JSON_TRUE ? NULL : head;
    return KVS_OK;
}
