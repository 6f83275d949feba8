/* SPDX-License-Identifier: MIT */
/* share.c: two chats that begin with the same system prompt: it is computed and stored once.
 *
 *   cc share.c $(pkg-config --cflags --libs kvstate_engine)
 *   ./a.out model.gguf q8 [DIR]      with DIR a later run starts warm, too */
#include <kvstate/engine.h>
#include <stdio.h>
#include <string.h>

static const char *const system_prompt =
    "You are a careful assistant. You answer in one short paragraph, name your sources, say what "
    "you do not know, and never repeat the question. Dates are written as 2024-05-01, numbers with "
    "their unit. If the user asks for code, you give one complete example and nothing else. ";
static const char *const question[2] = {"Why is the sky blue?", "How deep is the sea?"};

static size_t bytes_of_state(const kvs_prefix_cache *cache)
{
    kvs_pages_stats s = KVS_PAGES_STATS_INIT;
    (void)kvs_pages_get_stats(kvs_prefix_cache_pages(cache), &s);
    return s.held_bytes + s.cached_bytes;
}

/* One chat's prompt: how much of it was there, and what the pool takes now. */
static kvs_status ask(kvs_session *chat, const kvs_model *model, const kvs_prefix_cache *cache,
                      const char *text, kvs_err *err)
{
    static int32_t ids[1024];
    char prompt[1024];
    size_t n = 0;
    size_t reused = 0;
    (void)snprintf(prompt, sizeof prompt, "%s%s", system_prompt, text);
    kvs_status st =
        kvs_tokenizer_encode(kvs_model_tokenizer(model), prompt, strlen(prompt),
                             KVS_TOKENIZE_ADD_SPECIAL, ids, sizeof ids / sizeof ids[0], &n, err);
    st = st == KVS_OK ? kvs_session_sync(chat, ids, n, &reused, err) : st;
    if (st == KVS_OK) {
        printf("%zu of %zu tokens reused, %zu bytes of state in all\n", reused, n,
               bytes_of_state(cache));
    }
    return st;
}

int main(int argc, char **argv)
{
    kvs_err err = KVS_ERR_INIT;
    kvs_ctx *ctx = NULL;
    kvs_model *model = NULL;
    kvs_plan *plan = NULL;
    kvs_session *chat[2] = {NULL, NULL};
    kvs_plan_opts plan_opts = KVS_PLAN_OPTS_INIT;
    kvs_prefix_cache_opts cache_opts = KVS_PREFIX_CACHE_OPTS_INIT;
    kvs_session_opts opts = KVS_SESSION_OPTS_INIT;
    if (argc < 3) {
        return 2;
    }
    plan_opts.kv = argv[2];
    plan_opts.kv_block = 16; /* shared in blocks of so many tokens */
    plan_opts.n_ctx = 1024;
    cache_opts.max_bytes = (size_t)256 << 20;
    cache_opts.dir = argc > 3 ? argv[3] : NULL;
    if (kvs_ctx_new(NULL, &ctx, &err) || kvs_model_open(ctx, argv[1], NULL, &model, &err) ||
        kvs_plan_new(ctx, model, &plan_opts, &plan, &err)) {
        goto done;
    }
    cache_opts.plan = opts.plan = plan;
    if (kvs_prefix_cache_new(ctx, model, &cache_opts, &opts.prefix_cache, &err)) {
        goto done;
    }
    for (int i = 0; i < 2; i++) {
        if (kvs_session_new(ctx, model, &opts, &chat[i], &err) ||
            ask(chat[i], model, opts.prefix_cache, question[i], &err)) {
            goto done;
        }
    }
done:
    if (err.status) {
        fprintf(stderr, "%s: %s\n", kvs_status_name(err.status), err.msg);
    }
    kvs_session_free(chat[0]);
    kvs_session_free(chat[1]);
    kvs_prefix_cache_free(opts.prefix_cache);
    kvs_plan_free(plan);
    kvs_model_close(model);
    kvs_ctx_free(ctx);
    return err.status != KVS_OK;
}
