/* SPDX-License-Identifier: MIT */
/* consumer.c: a program outside the tree, built against the installed library. */
#include <kvstate/kvstate.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    kvs_ctx *ctx = NULL;
    kvs_err err;
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 2;
    if (kvs_ctx_new(&opts, &ctx, &err) != KVS_OK) {
        printf("%s\n", err.msg);
        return 1;
    }
    kvs_mask_desc mask = KVS_MASK_DESC_INIT;
    mask.n_queries = 2;
    mask.offset = 1;
    unsigned char bits[6];
    kvs_status st = kvs_mask_fill(&mask, bits, sizeof bits, &err);
    kvs_ctx_free(ctx);
    printf("kvstate %s\n", kvs_version());
    return st != KVS_OK || memcmp(bits, "\1\1\0\1\1\1", 6) != 0 ||
           strcmp(kvs_version(), KVS_VERSION_STRING) != 0;
}
