/* SPDX-License-Identifier: MIT */
/* tiny_model.c: writes a model for the tests of the program: tiny_model ARCH FILE. With a third
 * argument "wide" its heads have 64 elements, which every codec can hold; with another it is a
 * minimal one, a seed for tests/fuzz/fuzz_model.c, with all optional tensors. */
#include <string.h>

#include "support/model_build.h"

/* Architectures whose layers are no llama's start from a model of their own. */
static int own_base(tiny *t, const char *arch, int small)
{
    static const tiny bases[] = {TINY_QWEN3NEXT, TINY_MAMBA2, TINY_GEMMA4};
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        if (strcmp(arch, bases[i].arch) != 0) {
            continue;
        }
        *t = bases[i];
        if (small) {
            t->n_layers = i == 1 ? 1 : 3;
            t->d_model = 16;
            t->d_ff = i == 1 ? 0 : 8;
            t->n_experts = t->n_experts ? 2 : 0;
            t->n_used = t->n_used ? 1 : 0;
            t->d_expert = t->d_expert ? 8 : 0;
            t->d_gated = t->d_gated ? 8 : 0;
            t->s_head = t->s_head ? 4 : 0;
            t->s_dim = t->s_dim ? 4 : 0;
            t->n_heads = i == 1 ? 0 : 2;
            t->n_kv_heads = i == 1 ? 0 : 1;
            t->every = i == 0 ? 3 : i == 2 ? 2 : 0;
            t->n_borrow = i == 2 ? 1 : 0;
            t->d_side = i == 2 ? 8 : 0;
            t->full_dim = i == 2 ? 16 : 0;
            t->window = i == 2 ? 4 : 0;
        }
        return 1;
    }
    return 0;
}

/* What other architectures have beside that, as small as it gets. */
static void minimal(tiny *t)
{
    t->longrope = tiny_is(t, "phi3");
    if (tiny_is(t, "qwen3moe") || tiny_is(t, "deepseek2")) {
        t->n_experts = 4;
        t->n_used = 2;
        t->d_expert = 8;
        t->window = 0;
    }
    if (tiny_is(t, "deepseek2")) {
        t->n_shared = 1;
        t->n_groups = 2;
        t->n_best = 1;
        t->q_rank = 8;
        t->rank = 16;
        t->nope = 8;
        t->rot = 8;
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        (void)fprintf(stderr, "usage: tiny_model ARCH FILE\n");
        return 2;
    }
    tiny t = TINY_LLAMA;
    int wide = argc > 3 && strcmp(argv[3], "wide") == 0;
    int small = argc > 3 && !wide;
    int own = own_base(&t, argv[1], small);
    t.arch = argv[1];
    t.chat = !small;
    t.n_vocab = small ? 7 : TINY_CHAT_VOCAB;
    t.type = small ? KVS__W_BF16 : t.type;
    t.dim = wide ? 64 : t.dim;
    if (small && !own) {
        t.n_layers = 1;
        t.d_model = 16;
        t.d_ff = 8;
        t.n_heads = 2;
        t.n_kv_heads = 1;
        t.window = 4;
        t.untied = t.bias = t.rope_freqs = argv[1][0] == 'l';
        minimal(&t);
    }
    return tiny_save(&t, argv[2]) ? 0 : 1;
}
