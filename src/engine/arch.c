/* SPDX-License-Identifier: MIT */
/* arch.c: the table of architectures and the reading of their keys. */
#include "engine/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const kvs__arch *const table[] = {
    &kvs__arch_llama,     &kvs__arch_qwen2,         &kvs__arch_qwen3,  &kvs__arch_qwen3moe,
    &kvs__arch_olmoe,     &kvs__arch_phi3,          &kvs__arch_gemma2, &kvs__arch_gemma3,
    &kvs__arch_deepseek2, &kvs__arch_qwen3next,     &kvs__arch_qwen35, &kvs__arch_mamba2,
    &kvs__arch_gemma4,    &kvs__arch_granitehybrid,
};

const kvs__arch *kvs__arch_find(kvs__str name)
{
    for (size_t i = 0; i < KVS_COUNT(table); i++) {
        if (kvs__str_eq(name, table[i]->name)) {
            return table[i];
        }
    }
    return NULL;
}

const char *kvs__arch_list(void)
{
    return "llama, qwen2, qwen3, qwen3moe, olmoe, phi3, gemma2, gemma3, deepseek2, qwen3next, "
           "qwen35, mamba2, gemma4, granitehybrid";
}

static void make_key(const kvs_model *m, const char *suffix, char key[96])
{
    (void)snprintf(key, 96, "%s.%s", m->arch->name, suffix);
}

kvs_status kvs__param_u32(const kvs_model *m, const kvs__u32_rule *rule, uint32_t *out,
                          kvs_err *err)
{
    char key[96];
    make_key(m, rule->suffix, key);
    uint32_t v = 0;
    kvs_status st = kvs__gguf_get_u32(m->gguf, key, &v, err);
    if (st == KVS_NO) {
        if (!rule->fallback) {
            return kvs__fail(err, KVS_E_FORMAT, "engine", "the model has no %s", key);
        }
        v = *rule->fallback;
    } else if (st != KVS_OK) {
        return st;
    }
    if (v < rule->min || v > rule->max) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s is %u, outside %u..%u", key, v, rule->min,
                         rule->max);
    }
    *out = v;
    return KVS_OK;
}

kvs_status kvs__param_f32(const kvs_model *m, const char *suffix, const float *fallback, float *out,
                          kvs_err *err)
{
    char key[96];
    make_key(m, suffix, key);
    float v = 0.0f;
    kvs_status st = kvs__gguf_get_f32(m->gguf, key, &v, err);
    if (st == KVS_NO) {
        if (!fallback) {
            return kvs__fail(err, KVS_E_FORMAT, "engine", "the model has no %s", key);
        }
        *out = *fallback;
        return KVS_OK;
    }
    if (st != KVS_OK) {
        return st;
    }
    if (!(v > 0.0f) || !isfinite(v)) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s is %g, not a positive number", key,
                         (double)v);
    }
    *out = v;
    return KVS_OK;
}

kvs_status kvs__param_bool(const kvs_model *m, const char *suffix, bool *out, kvs_err *err)
{
    char key[96];
    make_key(m, suffix, key);
    kvs_status st = kvs__gguf_get_bool(m->gguf, key, out, err);
    return st == KVS_NO ? KVS_OK : st;
}

kvs_status kvs__param_str(const kvs_model *m, const char *suffix, kvs__str *out, kvs_err *err)
{
    char key[96];
    make_key(m, suffix, key);
    kvs_status st = kvs__gguf_get_str(m->gguf, key, out, err);
    return st == KVS_NO ? KVS_OK : st;
}
