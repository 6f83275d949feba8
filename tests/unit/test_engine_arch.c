/* SPDX-License-Identifier: MIT */
/* test_engine_arch.c: what is particular to an architecture: choice of experts, frequencies that
 * depend on the context, what a latent layer keeps, and refusals. Logits are compared with mlx_lm in
 * tests/oracle/oracle_arch.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/block.h"
#include "kvstate/engine.h"
#include "support/model_build.h"

static void is_near(double got, double want, double off)
{
    if (!(fabs(got - want) <= off)) {
        fail_msg("%.9g is not %.9g", got, want);
    }
}

/* ---- experts */

static void route(const kvs__moe *e, const float *scores, uint32_t *choice, float *weight)
{
    float p[16];
    memcpy(p, scores, e->n * sizeof *p);
    kvs__moe_route(e, p, choice, weight);
}

static void test_ties_go_to_the_lower_index(void **state)
{
    (void)state;
    const kvs__moe e = {.n = 8, .used = 3, .n_groups = 1, .groups_used = 1, .scale = 1.0f};
    const float flat[8] = {0.0f};
    const float some[8] = {1.0f, 2.0f, 0.0f, 2.0f, 1.0f, 2.0f, 2.0f, 0.0f};
    uint32_t choice[3];
    float weight[3];
    route(&e, flat, choice, weight);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(choice[i], i);
        is_near((double)weight[i], 0.125, 1e-7);
    }
    route(&e, some, choice, weight);
    assert_int_equal(choice[0], 1);
    assert_int_equal(choice[1], 3);
    assert_int_equal(choice[2], 5);
}

static void test_weights(void **state)
{
    (void)state;
    kvs__moe e = {.n = 4, .used = 2, .n_groups = 1, .groups_used = 1, .scale = 2.5f};
    const float scores[4] = {0.0f, logf(3.0f), logf(5.0f), 0.0f}; /* p = 1 3 5 1 of 10 */
    uint32_t choice[2];
    float weight[2];
    route(&e, scores, choice, weight);
    assert_int_equal(choice[0], 2);
    assert_int_equal(choice[1], 1);
    is_near((double)weight[0], 1.25, 1e-6);
    is_near((double)weight[1], 0.75, 1e-6);
    e.normalise = true;
    route(&e, scores, choice, weight);
    is_near((double)weight[0], 2.5 * 5.0 / 8.0, 1e-6);
    is_near((double)weight[1], 2.5 * 3.0 / 8.0, 1e-6);
}

static void test_groups(void **state)
{
    (void)state;
    /* groups of 2; the best expert of each: 3, 9, 4, 8 */
    const kvs__moe e = {.n = 8, .used = 3, .n_groups = 4, .groups_used = 2, .scale = 1.0f};
    const float scores[8] = {3.0f, 2.9f, 9.0f, 0.0f, 4.0f, 4.0f, 1.0f, 8.0f};
    const float equal[8] = {1.0f, 0.0f, 1.0f, 0.0f, 1.0f, 0.0f, 1.0f, 0.0f};
    uint32_t choice[3];
    float weight[3];
    route(&e, scores, choice, weight);
    assert_int_equal(choice[0], 2);
    assert_int_equal(choice[1], 7);
    assert_int_equal(choice[2], 6); /* of its group, though 4 and 5 are rated higher */
    route(&e, equal, choice, weight);
    assert_int_equal(choice[0], 0); /* of equal groups the first ones */
    assert_int_equal(choice[1], 2);
    assert_int_equal(choice[2], 1);
}

static void test_not_a_number_stays_one(void **state)
{
    (void)state;
    const kvs__moe e = {.n = 4, .used = 2, .n_groups = 2, .groups_used = 1, .scale = 1.0f};
    const float scores[4] = {0.0f, NAN, 0.0f, 0.0f};
    uint32_t choice[2];
    float weight[2];
    route(&e, scores, choice, weight);
    assert_true(choice[0] < 4 && choice[1] < 4);
    assert_true(weight[0] != weight[0] || weight[1] != weight[1]);
}

/* ---- rotary encodings */

static kvs__rope plain_rope(void)
{
    return (kvs__rope){.n_rot = 8,
                       .base = 100.0f,
                       .factor = 1.0f,
                       .n_ctx_train = 64,
                       .n_ctx_orig = 64,
                       .part = 1.0f};
}

static void test_long_and_short_contexts(void **state)
{
    (void)state;
    const float far[4] = {2.0f, 3.0f, 4.0f, 5.0f};
    const float close[4] = {1.0f, 1.5f, 1.25f, 1.0f};
    kvs__rope r = plain_rope();
    r.kind = KVS__ROPE_LONG;
    r.n_ctx_orig = 32;
    r.factors = far;
    r.short_factors = close;
    for (uint32_t n_ctx = 32; n_ctx <= 33; n_ctx++) {
        double f[4];
        float turn = kvs__rope_freqs(&r, n_ctx, f);
        for (uint32_t i = 0; i < 4; i++) {
            double divisor = (double)(n_ctx == 32 ? close[i] : far[i]);
            is_near(f[i], pow(100.0, -0.25 * i) / divisor, 1e-12);
        }
        is_near((double)turn, sqrt(1.0 + log(2.0) / log(32.0)), 1e-6);
    }
}

static void test_dynamic_base(void **state)
{
    (void)state;
    kvs__rope r = plain_rope();
    r.kind = KVS__ROPE_DYNAMIC;
    r.factor = 2.0f;
    double f[4];
    (void)kvs__rope_freqs(&r, 64, f);
    is_near(f[1], pow(100.0, -0.25), 1e-12);
    (void)kvs__rope_freqs(&r, 96, f); /* 2 * 96 / 64 - 1 = 2 */
    is_near(f[1], pow(100.0 * pow(2.0, 8.0 / 6.0), -0.25), 1e-12);
}

static void test_proportional(void **state)
{
    (void)state;
    kvs__rope r = plain_rope();
    r.kind = KVS__ROPE_PROPORTIONAL;
    r.part = 0.5f;
    double f[4];
    (void)kvs__rope_freqs(&r, 64, f);
    is_near(f[1], pow(100.0, -0.25), 1e-12);
    is_near(f[2], 0.0, 0.0);
    is_near(f[3], 0.0, 0.0);
}

/* ---- state */

static void test_latent_plan(void **state)
{
    (void)state;
    tiny t = TINY_DEEPSEEK;
    char path[256];
    char line[160];
    kvs_ctx *ctx = NULL;
    kvs_model *m = NULL;
    kvs_plan *plan = NULL;
    assert_true(tiny_write(&t, path, sizeof path));
    assert_int_equal(kvs_ctx_new(NULL, &ctx, NULL), KVS_OK);
    assert_int_equal(kvs_model_open(ctx, path, NULL, &m, NULL), KVS_OK);
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    assert_int_equal(kvs_model_get_info(m, &info), KVS_OK);
    assert_int_equal(info.n_experts, 8);
    assert_int_equal(info.n_experts_used, 3);
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    po.kv = "affine8:32+affine2:128"; /* there are no values for the latter to fail on */
    kvs_err e = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_plan_new(ctx, m, &po, &plan, &e), KVS_E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "keys")); /* 32 does not divide 48 */
    po.kv = "f16";
    assert_int_equal(kvs_plan_new(ctx, m, &po, &plan, NULL), KVS_OK);
    const kvs_layer_spec *s = kvs_plan_layer(plan, 0);
    assert_int_equal(s->kind, KVS_LAYER_LATENT);
    assert_int_equal(s->k_dim, 48);
    assert_int_equal(s->v_dim, 32);
    (void)kvs_plan_line(plan, 0, line, sizeof line);
    assert_string_equal(line, "layers 0-2: grow, latent f16, one row of 48");
    kvs_plan_free(plan);
    kvs_model_close(m);
    kvs_ctx_free(ctx);
    (void)unlink(path);
}

/* ---- refusals */

static void refused(const tiny *t, kvs_status status, const char *says)
{
    char path[256];
    kvs_ctx *ctx = NULL;
    kvs_model *m = NULL;
    kvs_err e = {KVS_OK, 0, "", ""};
    assert_true(tiny_write(t, path, sizeof path));
    assert_int_equal(kvs_ctx_new(NULL, &ctx, NULL), KVS_OK);
    kvs_status st = kvs_model_open(ctx, path, NULL, &m, &e);
    (void)unlink(path);
    kvs_model_close(m);
    kvs_ctx_free(ctx);
    if (st != status || !strstr(e.msg, says)) {
        fail_msg("%d \"%s\", not %d with \"%s\"", st, e.msg, status, says);
    }
}

static void test_refused_experts(void **state)
{
    (void)state;
    tiny t = TINY_MOE;
    t.omit = "blk.1.ffn_up_exps.weight";
    refused(&t, KVS_E_FORMAT, "blk.1.ffn_up_exps.weight");
    t.omit = "blk.2.ffn_gate_inp.weight"; /* then it must be dense */
    refused(&t, KVS_E_FORMAT, "blk.2.ffn_gate.weight");
    t.omit = NULL;
    t.wrong = "blk.0.ffn_down_exps.weight";
    refused(&t, KVS_E_FORMAT, "blk.0.ffn_down_exps.weight is 32 x 65");
    t.wrong = NULL;
    t.n_used = 9;
    refused(&t, KVS_E_FORMAT, "qwen3moe.expert_used_count is 9");
    t.n_used = 3;
    t.n_groups = 3;
    refused(&t, KVS_E_FORMAT, "no multiple of expert_group_count 3");
    t.n_groups = 8;
    t.n_best = 2;
    refused(&t, KVS_E_FORMAT, "more than 2 groups");
    t = (tiny)TINY_MOE;
    t.arch = "gemma3";
    refused(&t, KVS_E_UNSUPPORTED, "gemma3.expert_count is 8");
}

static void test_refused_latent(void **state)
{
    (void)state;
    tiny t = TINY_DEEPSEEK;
    t.omit = "deepseek2.attention.kv_lora_rank";
    refused(&t, KVS_E_FORMAT, "deepseek2.attention.kv_lora_rank");
    t.omit = "blk.0.attn_kv_b.weight";
    refused(&t, KVS_E_FORMAT, "blk.0.attn_kv_b.weight");
    t.omit = "blk.2.attn_q_a_norm.weight";
    refused(&t, KVS_E_FORMAT, "blk.2.attn_q_a_norm.weight");
    t.omit = NULL;
    t.wrong = "blk.1.attn_kv_a_mqa.weight";
    refused(&t, KVS_E_FORMAT, "blk.1.attn_kv_a_mqa.weight is 64 x 49");
    t.wrong = NULL;
    t.rank = 36;
    refused(&t, KVS_E_UNSUPPORTED, "kv_lora_rank 36");
}

static void test_refused_parts(void **state)
{
    (void)state;
    tiny t = TINY_LLAMA;
    t.arch = "phi3";
    t.longrope = 1;
    t.omit = "rope_factors_short.weight";
    refused(&t, KVS_E_FORMAT, "rope_factors_short.weight");
    t.omit = NULL;
    t.wrong = "blk.0.attn_qkv.weight";
    refused(&t, KVS_E_FORMAT, "blk.0.attn_qkv.weight is 64 x 129");
    t = (tiny)TINY_LLAMA;
    t.arch = "gemma2";
    t.bias = 1;
    refused(&t, KVS_E_UNSUPPORTED, "blk.0.attn_q.bias");
}

static void test_refused_scaling(void **state)
{
    (void)state;
    tiny t = TINY_LLAMA;
    t.rope_scale = 4.0f;
    t.rope_type = "mrope";
    refused(&t, KVS_E_UNSUPPORTED, "llama.rope.scaling.type is \"mrope\"");
    t.rope_type = "longrope"; /* without its divisors */
    refused(&t, KVS_E_FORMAT, "rope_factors_long.weight");
    t.rope_scale = 0.5f;
    t.rope_type = "dynamic";
    refused(&t, KVS_E_FORMAT, "llama: dynamic scaling by rope.scaling.factor 0.5");
    t = (tiny)TINY_DEEPSEEK;
    t.rope_scale = 4.0f;
    t.rope_type = "longrope";
    refused(&t, KVS_E_UNSUPPORTED, "deepseek2.rope.scaling.type is longrope");
}

static void test_refused_recurrent(void **state)
{
    (void)state;
    tiny t = TINY_QWEN3NEXT;
    t.omit = "qwen3next.ssm.state_size";
    refused(&t, KVS_E_FORMAT, "qwen3next.ssm.state_size");
    t.omit = "blk.2.ssm_a";
    refused(&t, KVS_E_FORMAT, "blk.2.ssm_a");
    t.omit = "blk.0.ssm_in.weight"; /* then the parts must be there */
    refused(&t, KVS_E_FORMAT, "blk.0.attn_qkv.weight");
    t.omit = "blk.0.ssm_ba.weight";
    refused(&t, KVS_E_FORMAT, "blk.0.ssm_alpha.weight");
    t.omit = "qwen3next.expert_count"; /* routers alone make no mixture */
    refused(&t, KVS_E_FORMAT, "blk.0.ffn_gate.weight");
    t.omit = "blk.1.ffn_gate_inp_shexp.weight";
    refused(&t, KVS_E_FORMAT, "blk.1.ffn_gate_inp_shexp.weight");
    t.omit = NULL;
    t.wrong = "blk.0.ssm_conv1d.weight";
    refused(&t, KVS_E_FORMAT, "blk.0.ssm_conv1d.weight has 4 x 161");
    t.wrong = "blk.3.attn_q.weight"; /* queries and gates */
    refused(&t, KVS_E_FORMAT, "blk.3.attn_q.weight is 64 x 129");
    t.wrong = NULL;
    t.s_groups = 3;
    refused(&t, KVS_E_UNSUPPORTED, "4 heads in 3 groups");
    t.s_groups = 2;
    t.s_dim = 18;
    refused(&t, KVS_E_UNSUPPORTED, "a state of 18");
    t.s_dim = 16;
    t.taps = 17;
    refused(&t, KVS_E_FORMAT, "qwen3next.ssm.conv_kernel is 17");
    t.taps = 4;
    t.arch = "qwen35moe";
    t.omit = "blk.2.ssm_conv1d.weight";
    refused(&t, KVS_E_FORMAT, "blk.2.ssm_conv1d.weight");
    tiny m = TINY_MAMBA2;
    m.omit = "blk.1.ssm_d";
    refused(&m, KVS_E_FORMAT, "blk.1.ssm_d");
    m.omit = NULL;
    m.wrong = "blk.0.ssm_in.weight";
    refused(&m, KVS_E_FORMAT, "blk.0.ssm_in.weight is 64 x 261");
}

static void test_refused_borrowers(void **state)
{
    (void)state;
    tiny t = TINY_GEMMA4;
    t.n_borrow = 6; /* only local layers are left */
    refused(&t, KVS_E_FORMAT, "no layer below the last 6");
    t.n_borrow = 8;
    refused(&t, KVS_E_FORMAT, "gemma4.attention.shared_kv_layers is 8");
    t.n_borrow = 4;
    t.omit = "per_layer_token_embd.weight";
    refused(&t, KVS_E_FORMAT, "per_layer_token_embd.weight");
    t.omit = "blk.7.inp_gate.weight";
    refused(&t, KVS_E_FORMAT, "blk.7.inp_gate.weight");
    t.omit = NULL;
    t.wrong = "blk.4.ffn_down.weight"; /* twice as wide where keys are borrowed */
    refused(&t, KVS_E_FORMAT, "blk.4.ffn_down.weight is 192 x 65");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ties_go_to_the_lower_index),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_not_a_number_stays_one),
        cmocka_unit_test(test_long_and_short_contexts),
        cmocka_unit_test(test_dynamic_base),
        cmocka_unit_test(test_proportional),
        cmocka_unit_test(test_latent_plan),
        cmocka_unit_test(test_refused_experts),
        cmocka_unit_test(test_refused_latent),
        cmocka_unit_test(test_refused_parts),
        cmocka_unit_test(test_refused_scaling),
        cmocka_unit_test(test_refused_recurrent),
        cmocka_unit_test(test_refused_borrowers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
