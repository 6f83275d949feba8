/* SPDX-License-Identifier: MIT */
/* hf_config.c: config.json as metadata under the engine's keys.
 *
 * The table of families says which architecture a model_type is and what differs in its files.
 * Keys are translated one by one; a key that has the wrong type or an impossible value is an error
 * that names it, a missing one is left out and the architecture decides whether it can do without.
 * Where a family's published configurations leave out what equals the class default, the default
 * is in a table here. What would change the arithmetic and is not understood is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "engine/hf_config.h"
#include "engine/hf_rope.h"

#define HALVES KVS__ROPE_HALVES
#define PAIRS  KVS__ROPE_PAIRS
#define GEMMA  (KVS__HF_NORM_PLUS_ONE | KVS__HF_FOUR_NORMS | KVS__HF_WINDOW)

#define GEMMA4 (KVS__HF_FOUR_NORMS | KVS__HF_WINDOW | KVS__HF_GEMMA4)

static const kvs__hf_family families[] = {
    {"llama", "llama", 0, HALVES},
    {"mistral", "llama", KVS__HF_WINDOW, HALVES},
    {"mixtral", "llama", KVS__HF_WINDOW | KVS__HF_MIXTRAL, HALVES},
    {"qwen2", "qwen2", 0, HALVES},
    {"qwen3", "qwen3", 0, HALVES},
    {"gemma2", "gemma2", GEMMA, HALVES},
    {"gemma3", "gemma3", GEMMA, HALVES},
    {"gemma3_text", "gemma3", GEMMA, HALVES},
    {"phi3", "phi3", KVS__HF_FUSED | KVS__HF_WINDOW, HALVES},
    {"qwen3_moe", "qwen3moe", 0, HALVES},
    {"olmoe", "olmoe", 0, HALVES},
    {"deepseek_v2", "deepseek2", 0, PAIRS},
    {"qwen3_next", "qwen3next", KVS__HF_DELTA, HALVES},
    {"qwen3_5", "qwen35", KVS__HF_DELTA, HALVES},
    {"qwen3_5_text", "qwen35", KVS__HF_DELTA, HALVES},
    {"qwen3_5_moe", "qwen35", KVS__HF_DELTA, HALVES},
    {"qwen3_5_moe_text", "qwen35", KVS__HF_DELTA, HALVES},
    {"mamba2", "mamba2", KVS__HF_MAMBA, HALVES},
    {"granitemoehybrid", "granitehybrid", KVS__HF_GRANITE, HALVES},
    {"gemma4", "gemma4", GEMMA4, HALVES},
    {"gemma4_text", "gemma4", GEMMA4, HALVES},
};

kvs__jval kvs__hf_text_config(const kvs__hf *hf)
{
    kvs__jval root = kvs__json_root(hf->config);
    kvs__jval text = kvs__json_get(root, "text_config");
    return kvs__json_kind(text) == KVS__JSON_OBJECT ? text : root;
}

kvs_status kvs__hf_find_family(kvs__hf *hf, kvs_err *err)
{
    kvs__jval root = kvs__json_root(hf->config);
    kvs__jval type = kvs__json_get(root, "model_type");
    if (kvs__json_kind(type) != KVS__JSON_STRING) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "config.json: model_type is %s, not a string",
                         kvs__json_kind_name(type));
    }
    for (size_t i = 0; i < KVS_COUNT(families); i++) {
        if (kvs__json_is(type, families[i].model_type)) {
            hf->family = &families[i];
        }
    }
    return KVS_OK;
}

/* ---- values */

typedef kvs__hf_writer writer;

static const char *make_key(const writer *w, const char *suffix, char key[96])
{
    (void)snprintf(key, 96, "%s.%s", w->hf->family->arch, suffix);
    return key;
}

kvs__jval kvs__hf_get(const writer *w, const char *name)
{
    kvs__jval v = kvs__json_get(w->config, name);
    return kvs__json_kind(v) == KVS__JSON_NULL ? (kvs__jval){NULL, 0} : v;
}

void kvs__hf_wrong(writer *w, const char *name, kvs__jval v, const char *wanted)
{
    kvs__str raw = kvs__json_raw(v);
    w->st = kvs__fail(w->err, KVS_E_FORMAT, "engine", "config.json: %s is %s %s, not %s", name,
                      kvs__json_kind_name(v), kvs__gguf_quote(raw).text, wanted);
}

static bool is_new(writer *w, const char *suffix)
{
    for (size_t i = 0; i < w->n_written; i++) {
        if (strcmp(w->written[i], suffix) == 0) {
            return false;
        }
    }
    if (w->n_written < KVS_COUNT(w->written)) {
        w->written[w->n_written++] = suffix;
    }
    return true;
}

void kvs__hf_put_u32(writer *w, const char *suffix, uint32_t v)
{
    char key[96];
    if (w->st == KVS_OK && is_new(w, suffix)) {
        w->st = kvs__meta_u32(w->hf, make_key(w, suffix, key), v, w->err);
    }
}

void kvs__hf_put_bool(kvs__hf_writer *w, const char *suffix, bool v)
{
    char key[96];
    if (w->st == KVS_OK && is_new(w, suffix)) {
        w->st = kvs__meta_bool(w->hf, make_key(w, suffix, key), v, w->err);
    }
}

void kvs__hf_put_f32(writer *w, const char *suffix, double v)
{
    char key[96];
    if (w->st == KVS_OK && is_new(w, suffix)) {
        w->st = kvs__meta_f32(w->hf, make_key(w, suffix, key), (float)v, w->err);
    }
}

bool kvs__hf_read_u32(writer *w, const char *name, uint32_t *out)
{
    kvs__jval v = kvs__hf_get(w, name);
    int64_t i = -1;
    if (w->st != KVS_OK || !v.doc) {
        return false;
    }
    if (!kvs__json_int(v, &i) || i < 0 || i > UINT32_MAX) {
        kvs__hf_wrong(w, name, v, "a whole number");
        return false;
    }
    *out = (uint32_t)i;
    return true;
}

bool kvs__hf_read_number(writer *w, const char *name, double *out)
{
    kvs__jval v = kvs__hf_get(w, name);
    if (w->st != KVS_OK || !v.doc) {
        return false;
    }
    if (!kvs__json_double(v, out) || !isfinite((float)*out)) {
        kvs__hf_wrong(w, name, v, "a number");
        return false;
    }
    return true;
}

bool kvs__hf_read_bool(writer *w, const char *name, bool fallback)
{
    kvs__jval v = kvs__hf_get(w, name);
    kvs__json_type type = kvs__json_kind(v);
    if (w->st == KVS_OK && v.doc && type != KVS__JSON_TRUE && type != KVS__JSON_FALSE) {
        kvs__hf_wrong(w, name, v, "true or false");
    }
    return v.doc ? type == KVS__JSON_TRUE : fallback;
}

/* ---- tables */

typedef struct key {
    const char *name;   /* in config.json */
    const char *suffix; /* of the engine's key */
} key;

static const key counts[] = {
    {"num_hidden_layers", "block_count"},
    {"hidden_size", "embedding_length"},
    {"vocab_size", "vocab_size"},
    {"intermediate_size", "feed_forward_length"},
    {"max_position_embeddings", "context_length"},
    {"num_attention_heads", "attention.head_count"},
    {"num_key_value_heads", "attention.head_count_kv"},
    {"head_dim", "attention.key_length"},
    {"head_dim", "attention.value_length"},
    {"num_experts", "expert_count"},
    {"num_local_experts", "expert_count"},
    {"n_routed_experts", "expert_count"},
    {"num_experts_per_tok", "expert_used_count"},
    {"moe_intermediate_size", "expert_feed_forward_length"},
    {"n_shared_experts", "expert_shared_count"},
    {"first_k_dense_replace", "leading_dense_block_count"},
    {"q_lora_rank", "attention.q_lora_rank"},
    {"kv_lora_rank", "attention.kv_lora_rank"},
};

static const key numbers[] = {
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
    {"attn_logit_softcapping", "attn_logit_softcapping"},
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"routed_scaling_factor", "expert_weights_scale"},
};

/* What published configurations of a family leave out; `model_type` as in config.json. */
static const struct {
    const char *arch;
    const char *name;
    const char *suffix;
    double value;
    bool is_count;
} defaults[] = {
    {"gemma3", "num_attention_heads", "attention.head_count", 8, true},
    {"gemma3", "num_key_value_heads", "attention.head_count_kv", 4, true},
    {"gemma3", "head_dim", "attention.key_length", 256, true},
    {"gemma3", "head_dim", "attention.value_length", 256, true},
    {"gemma3", "max_position_embeddings", "context_length", 131072, true},
    {"gemma3", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, false},
    {"gemma3", "query_pre_attn_scalar", "", 256, false},
    {"gemma2", "query_pre_attn_scalar", "", 256, false},
    {"gemma2", "sliding_window", "attention.sliding_window", 4096, true},
    {"gemma2", "attn_logit_softcapping", "attn_logit_softcapping", 50, false},
    {"gemma4", "final_logit_softcapping", "final_logit_softcapping", 30, false},
    {"gemma2", "final_logit_softcapping", "final_logit_softcapping", 30, false},
};

static void write_tables(writer *w)
{
    uint32_t n = 0;
    double x = 0.0;
    for (size_t i = 0; i < KVS_COUNT(counts); i++) {
        if (kvs__hf_read_u32(w, counts[i].name, &n)) {
            kvs__hf_put_u32(w, counts[i].suffix, n);
        }
    }
    for (size_t i = 0; i < KVS_COUNT(numbers); i++) {
        if (kvs__hf_read_number(w, numbers[i].name, &x)) {
            kvs__hf_put_f32(w, numbers[i].suffix, x);
        }
    }
    for (size_t i = 0; i < KVS_COUNT(defaults); i++) {
        bool absent = !kvs__json_get(w->config, defaults[i].name).doc;
        if (!absent || !defaults[i].suffix[0] ||
            strcmp(defaults[i].arch, w->hf->family->arch) != 0) {
            continue;
        }
        if (defaults[i].is_count) {
            kvs__hf_put_u32(w, defaults[i].suffix, (uint32_t)defaults[i].value);
        } else {
            kvs__hf_put_f32(w, defaults[i].suffix, defaults[i].value);
        }
    }
}

/* Without these nothing can be computed, and the engine's names of them would puzzle. */
static void check_required(writer *w)
{
    static const char *const names[] = {"num_hidden_layers",   "hidden_size",
                                        "intermediate_size",   "max_position_embeddings",
                                        "num_attention_heads", "rms_norm_eps"};
    for (size_t i = 0; w->st == KVS_OK && i < KVS_COUNT(names); i++) {
        bool have = kvs__hf_get(w, names[i]).doc != NULL ||
                    (i == 2 && kvs__hf_get(w, "moe_intermediate_size").doc &&
                     w->hf->family->flags & KVS__HF_DELTA);
        for (size_t k = 0; k < KVS_COUNT(defaults); k++) {
            have = have || (strcmp(defaults[k].arch, w->hf->family->arch) == 0 &&
                            strcmp(defaults[k].name, names[i]) == 0);
        }
        if (!have) {
            w->st = kvs__fail(w->err, KVS_E_FORMAT, "engine", "config.json has no %s", names[i]);
        }
    }
}

/* ---- what tables cannot say */

void kvs__hf_refuse(writer *w, const char *name, const char *why)
{
    if (w->st == KVS_OK) {
        w->st = kvs__fail(w->err, KVS_E_UNSUPPORTED, "engine", "config.json: %s %s", name, why);
    }
}

static void check_activation(writer *w)
{
    bool gelu = w->hf->family->flags & KVS__HF_FOUR_NORMS;
    kvs__jval act = kvs__hf_get(w, "hidden_act");
    kvs__jval own = kvs__hf_get(w, "hidden_activation"); /* Gemma 2 and 3 heed this one */
    act = gelu && own.doc ? own : act;
    if (!act.doc) {
        return;
    }
    bool good = gelu ? kvs__json_is(act, "gelu_pytorch_tanh") || kvs__json_is(act, "gelu")
                     : kvs__json_is(act, "silu") || kvs__json_is(act, "swish");
    if (!good) {
        kvs__hf_wrong(w, "hidden_act", act, gelu ? "gelu_pytorch_tanh" : "silu");
    }
}

/* Layers with a window: all, or all but every p-th. */
static void write_pattern(writer *w)
{
    kvs__jval types = kvs__hf_get(w, "layer_types");
    uint32_t p = 0;
    bool listed = types.doc && w->hf->family->flags & KVS__HF_GEMMA4;
    if (!listed && kvs__hf_read_u32(w, "sliding_window_pattern", &p)) {
        kvs__hf_put_u32(w, "attention.sliding_window_pattern", p);
        return;
    }
    if (kvs__json_kind(types) != KVS__JSON_ARRAY) {
        if (w->hf->family->flags & KVS__HF_FOUR_NORMS) {
            bool two = strcmp(w->hf->family->arch, "gemma2") == 0;
            bool four = (w->hf->family->flags & KVS__HF_GEMMA4) != 0;
            kvs__hf_put_u32(w, "attention.sliding_window_pattern", two ? 2 : four ? 5 : 6);
        }
        return;
    }
    uint32_t n = (uint32_t)kvs__json_count(types);
    uint32_t i = 0;
    kvs__jval v = {NULL, 0};
    while (p == 0 && kvs__json_next(types, &v)) {
        i++;
        p = kvs__json_is(v, "full_attention") ? i : 0;
    }
    p = p ? p : n + 1;
    i = 0;
    v.doc = NULL;
    while (kvs__json_next(types, &v)) {
        i++;
        bool full = i % p == 0;
        if (!kvs__json_is(v, full ? "full_attention" : "sliding_attention")) {
            kvs__hf_wrong(w, "layer_types", v, "part of a pattern that repeats");
            return;
        }
    }
    kvs__hf_put_u32(w, "attention.sliding_window_pattern", p > 1024 ? 1024 : p);
}

static void write_window(writer *w)
{
    uint32_t window = 0;
    if (!(w->hf->family->flags & KVS__HF_WINDOW)) {
        if (kvs__hf_read_bool(w, "use_sliding_window", false)) {
            kvs__hf_refuse(w, "use_sliding_window",
                           "is true; this family runs without a window alone");
        }
        return;
    }
    if (kvs__hf_read_u32(w, "sliding_window", &window)) {
        kvs__hf_put_u32(w, "attention.sliding_window", window);
    } else if (w->hf->family->flags & KVS__HF_FOUR_NORMS &&
               strcmp(w->hf->family->arch, "gemma2") != 0 && w->st == KVS_OK) {
        /* the libraries' defaults differ, 512 and 4096 */
        w->st = kvs__fail(w->err, KVS_E_FORMAT, "engine", "config.json has no sliding_window");
    }
    write_pattern(w);
}

/* Gemma divides queries by the root of a number of its own and scales the embedding. */
static void write_scales(writer *w)
{
    double x = 256.0;
    if (!(w->hf->family->flags & KVS__HF_FOUR_NORMS) || w->hf->family->flags & KVS__HF_GEMMA4) {
        return;
    }
    (void)kvs__hf_read_number(w, "query_pre_attn_scalar", &x);
    if (w->st == KVS_OK && !(x > 0.0)) {
        kvs__hf_wrong(w, "query_pre_attn_scalar", kvs__hf_get(w, "query_pre_attn_scalar"),
                      "a positive number");
    }
    kvs__hf_put_f32(w, "attention.scale", 1.0 / sqrt(x));
    uint32_t width = 0;
    if (kvs__hf_read_u32(w, "hidden_size", &width)) {
        /* rounded to bf16, as it was in training and is in both libraries */
        float scale = kvs__bf16_to_f32(kvs__bf16_from_f32(sqrtf((float)width)));
        kvs__hf_put_f32(w, "embedding_scale", (double)scale);
    }
}

static void write_experts(writer *w)
{
    static const char *const counts_of[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    bool have = false;
    for (size_t i = 0; i < KVS_COUNT(counts_of); i++) {
        have = have || kvs__hf_get(w, counts_of[i]).doc != NULL;
    }
    char name[96];
    if (!have || w->st != KVS_OK) {
        return;
    }
    bool norm = kvs__hf_read_bool(w, "norm_topk_prob",
                                  w->hf->family->flags &
                                      (KVS__HF_MIXTRAL | KVS__HF_DELTA | KVS__HF_GRANITE));
    if (w->st == KVS_OK) {
        w->st = kvs__meta_bool(w->hf, make_key(w, "expert_weights_norm", name), norm, w->err);
    }
    kvs__jval score = kvs__hf_get(w, "scoring_func");
    kvs__hf_put_u32(w, "expert_gating_func", kvs__json_is(score, "sigmoid") ? 2 : 1);
    kvs__jval method = kvs__hf_get(w, "topk_method");
    uint32_t groups = 0;
    uint32_t best = 0;
    if (kvs__json_is(method, "group_limited_greedy")) {
        if (kvs__hf_read_u32(w, "n_group", &groups) && kvs__hf_read_u32(w, "topk_group", &best)) {
            kvs__hf_put_u32(w, "expert_group_count", groups);
            kvs__hf_put_u32(w, "expert_group_used_count", best);
        }
    } else if (method.doc && !kvs__json_is(method, "greedy")) {
        kvs__hf_refuse(w, "topk_method", "is neither greedy nor group_limited_greedy");
    }
}

/* Latent attention: heads of a part with and a part without rotation. */
static void write_latent(writer *w)
{
    uint32_t nope = 0;
    uint32_t rope = 0;
    uint32_t v = 0;
    uint32_t rank = 0;
    if (!kvs__hf_read_u32(w, "kv_lora_rank", &rank) ||
        !kvs__hf_read_u32(w, "qk_nope_head_dim", &nope) ||
        !kvs__hf_read_u32(w, "qk_rope_head_dim", &rope) || !kvs__hf_read_u32(w, "v_head_dim", &v)) {
        return;
    }
    if (nope > 65536 || rope > 65536 || rank > 65536) {
        kvs__hf_refuse(w, "qk_nope_head_dim", "is too large");
        return;
    }
    kvs__hf_put_u32(w, "attention.key_length", nope + rope);
    kvs__hf_put_u32(w, "attention.value_length", v);
    kvs__hf_put_u32(w, "attention.key_length_mla", nope + rope);
    kvs__hf_put_u32(w, "attention.value_length_mla", v);
    kvs__hf_put_u32(w, "rope.dimension_count", rope);
}

static void write_arch(writer *w)
{
    kvs__hf_write_layers(w);
    check_activation(w);
    if (w->hf->family->flags & KVS__HF_MAMBA) {
        return; /* neither heads nor positions */
    }
    check_required(w);
    if (kvs__hf_get(w, "kv_lora_rank").doc) {
        write_latent(w);
    }
    write_tables(w);
    write_window(w);
    write_scales(w);
    write_experts(w);
    if (w->st == KVS_OK) {
        w->st = kvs__hf_write_rope(w->hf, w->config, w->err);
    }
}

/* ---- all of it */

/* The name that people know: what config.json says, else the directory's. */
static kvs_status write_name(kvs__hf *hf, kvs_err *err)
{
    kvs__jval v = kvs__json_get(kvs__json_root(hf->config), "_name_or_path");
    char text[96];
    const char *slash = strrchr(hf->dir, '/');
    (void)snprintf(text, sizeof text, "%s", slash && slash[1] ? slash + 1 : hf->dir);
    if (kvs__json_kind(v) == KVS__JSON_STRING && kvs__json_raw(v).len > 0 &&
        kvs__json_raw(v).len < sizeof text) {
        text[kvs__json_text(v, text)] = '\0';
    }
    return kvs__meta_str(hf, "general.name", text, err);
}

static kvs_status write_general(kvs__hf *hf, kvs_err *err)
{
    char text[96];
    kvs__jval type = kvs__json_get(kvs__json_root(hf->config), "model_type");
    kvs__gguf_quoted raw = kvs__gguf_quote(kvs__json_raw(type));
    (void)snprintf(text, sizeof text, "%s", hf->family ? hf->family->arch : raw.text);
    kvs_status st = kvs__meta_str(hf, "general.architecture", text, err);
    return st == KVS_OK ? write_name(hf, err) : st;
}

/* Metadata strings of the first file: all shards of a model say the same. */
static kvs_status write_file_meta(kvs__hf *hf, kvs_err *err)
{
    kvs__jval meta = {NULL, 0};
    if (hf->n_shards > 0) {
        meta = kvs__safetensors_metadata(hf->shards[0].file);
    }
    return kvs__meta_json(hf, "safetensors", meta, err);
}

kvs_status kvs__hf_write_meta(kvs__hf *hf, kvs_err *err)
{
    kvs_status st = kvs__meta_begin(hf, err);
    if (st == KVS_OK) {
        st = write_general(hf, err);
    }
    if (st == KVS_OK && hf->family) {
        writer w = {.hf = hf, .config = kvs__hf_text_config(hf), .err = err};
        write_arch(&w);
        st = w.st;
    }
    if (st == KVS_OK) {
        st = kvs__meta_json(hf, "config", kvs__json_root(hf->config), err);
    }
    if (st == KVS_OK && hf->generation) {
        st = kvs__meta_json(hf, "generation", kvs__json_root(hf->generation), err);
    }
    return st == KVS_OK ? write_file_meta(hf, err) : st;
}
