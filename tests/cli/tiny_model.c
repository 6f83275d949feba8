/* SPDX-License-Identifier: MIT */
/* tiny_model.c: writes a model for the tests of the program: tiny_model ARCH FILE. */
#include "support/model_build.h"

int main(int argc, char **argv)
{
    if (argc != 3) {
        (void)fprintf(stderr, "usage: tiny_model ARCH FILE\n");
        return 2;
    }
    tiny t = TINY_LLAMA;
    gb b;
    t.arch = argv[1];
    t.chat = 1;
    t.n_vocab = TINY_CHAT_VOCAB;
    tiny_build(&b, &t);
    FILE *f = fopen(argv[2], "wb");
    int ok = f && fwrite(b.p, 1, b.n, f) == b.n;
    ok = f && fclose(f) == 0 && ok;
    gb_free(&b);
    return ok ? 0 : 1;
}
