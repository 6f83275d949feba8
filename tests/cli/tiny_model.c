/* SPDX-License-Identifier: MIT */
/* tiny_model.c: writes a model for the tests of the program: tiny_model ARCH FILE. With a third
 * argument "wide" its heads have 64 elements, which every codec can hold; with another it is a
 * minimal one, a seed for tests/fuzz/fuzz_model.c, with all optional tensors. */
#include <string.h>

#include "support/model_build.h"

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
    gb b;
    t.arch = argv[1];
    t.chat = 1;
    t.n_vocab = TINY_CHAT_VOCAB;
    if (argc > 3 && strcmp(argv[3], "wide") == 0) {
        t.dim = 64;
    } else if (argc > 3) {
        t.chat = 0;
        t.n_vocab = 7;
        t.n_layers = 1;
        t.d_model = 16;
        t.d_ff = 8;
        t.n_heads = 2;
        t.n_kv_heads = 1;
        t.window = 4;
        t.type = KVS__W_BF16;
        t.untied = t.bias = t.rope_freqs = argv[1][0] == 'l';
        minimal(&t);
    }
    tiny_build(&b, &t);
    FILE *f = fopen(argv[2], "wb");
    int ok = f && fwrite(b.p, 1, b.n, f) == b.n;
    ok = f && fclose(f) == 0 && ok;
    gb_free(&b);
    return ok ? 0 : 1;
}
