/* SPDX-License-Identifier: MIT */
/* perplexity.c: how well a model predicts a text with its state kept in a plan.
 *
 *   cc perplexity.c $(pkg-config --cflags --libs kvstate_engine) -lm
 *   ./a.out model.gguf text.txt q4 */
#include <kvstate/engine.h>
#include <math.h>
#include <stdio.h>

typedef struct score {
    const int32_t *tokens;
    size_t n;
    double nll; /* sum of -log p(token) */
    size_t counted;
} score;

/* Logits after the token at `pos` say what they think of the one behind it. */
static int on_logits(void *user, int64_t pos, const float *logits, size_t n_vocab)
{
    score *s = user;
    double sum = 0.0;
    if ((size_t)pos + 1 < s->n) {
        float want = logits[s->tokens[pos + 1]];
        for (size_t i = 0; i < n_vocab; i++) {
            sum += exp((double)(logits[i] - want));
        }
        s->nll += log(sum);
        s->counted++;
    }
    return 0; /* else it stops */
}

int main(int argc, char **argv)
{
    static char text[1 << 16];
    static int32_t ids[1 << 16];
    kvs_err err = KVS_ERR_INIT;
    kvs_ctx *ctx = NULL;
    kvs_model *model = NULL;
    kvs_plan *plan = NULL;
    kvs_session *session = NULL;
    kvs_plan_opts plan_opts = KVS_PLAN_OPTS_INIT;
    kvs_session_opts opts = KVS_SESSION_OPTS_INIT;
    kvs_eval eval = KVS_EVAL_INIT;
    score s = {ids, 0, 0.0, 0};
    FILE *f = argc == 4 ? fopen(argv[2], "rb") : NULL;
    if (!f) {
        return 2; /* no such text */
    }
    size_t n = fread(text, 1, sizeof text, f);
    (void)fclose(f);
    plan_opts.kv = argv[3];
    if (kvs_ctx_new(NULL, &ctx, &err) || kvs_model_open(ctx, argv[1], NULL, &model, &err) ||
        kvs_plan_new(ctx, model, &plan_opts, &plan, &err) ||
        kvs_tokenizer_encode(kvs_model_tokenizer(model), text, n, KVS_TOKENIZE_ADD_SPECIAL, ids,
                             sizeof ids / sizeof ids[0], &s.n, &err)) {
        goto done;
    }
    s.n = s.n < kvs_plan_n_ctx(plan) ? s.n : kvs_plan_n_ctx(plan);
    opts.plan = plan;
    eval.tokens = ids;
    eval.n_tokens = s.n;
    eval.on_logits = on_logits;
    eval.user = &s;
    if (kvs_session_new(ctx, model, &opts, &session, &err) == KVS_OK &&
        kvs_session_eval(session, &eval, &err) == KVS_OK && s.counted > 0) {
        printf("perplexity %.4f over %zu tokens with %s\n", exp(s.nll / (double)s.counted),
               s.counted, argv[3]);
    }
done:
    if (err.status) {
        fprintf(stderr, "%s: %s\n", kvs_status_name(err.status), err.msg);
    }
    kvs_session_free(session);
    kvs_plan_free(plan);
    kvs_model_close(model);
    kvs_ctx_free(ctx);
    return err.status != KVS_OK;
}
