/* SPDX-License-Identifier: MIT */
/* prompt_file.c: reads and writes the file of --prompt-cache (prompt_file.h).
 *
 * A file that kvstate wrote tells its tokens: as much of it as the prompt begins with is used. One
 * of mlx-lm does not, and nothing is guessed: as in mlx-lm, the prompt continues the text. What does
 * not fit the model or the plan is an error, never a cold start in silence. */
#include "prompt_file.h"

#include <string.h>

/* Told before the work, not after it. */
static int check_plan(const machine *m)
{
    for (uint32_t i = 0; i < kvs_plan_n_layers(m->plan); i++) {
        const kvs_layer_spec *l = kvs_plan_layer(m->plan, i);
        bool affine = l->k.bits > 0 || l->v.bits > 0;
        bool latent = l->kind == KVS_LAYER_LATENT;
        bool apart = !latent && (l->k.bits != l->v.bits || l->k.group != l->v.group);
        if (l->k.rotate || (!latent && l->v.rotate) || apart || (affine && l->window > 0)) {
            return fail(EXIT_USAGE,
                        "--prompt-cache: layer %u is kept in a way that mlx-lm has no class for; "
                        "it needs f32, f16, bf16 or affineN[:G], without a window where it is "
                        "quantised",
                        i);
        }
    }
    return 0;
}

int prompt_file_load(machine *m, prompt_file *f)
{
    const settings *s = m->s;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_prompt_cache *file = NULL;
    *f = (prompt_file){false, false, 0};
    if (!s->prompt_cache) {
        return s->prompt_cache_all
                   ? fail(EXIT_USAGE,
                          "--prompt-cache-all: which file? --prompt-cache FILE names it")
                   : 0;
    }
    int rc = check_plan(m);
    if (rc != 0) {
        return rc;
    }
    kvs_status st = kvs_prompt_cache_open(m->ctx, s->prompt_cache, &file, &err);
    if (st == KVS_E_NOTFOUND) {
        return 0;
    }
    st = st == KVS_OK ? kvs_session_load_prompt_cache(m->session, file, 0, &err) : st;
    kvs_prompt_cache_close(file);
    if (st != KVS_OK) {
        return fail_err(EXIT_INPUT, st, &err,
                        st == KVS_E_UNSUPPORTED ? "--kv sets how the state is kept" : NULL);
    }
    const int32_t *tokens = kvs_session_tokens(m->session, &f->n_held);
    f->found = true;
    f->unknown = f->n_held > 0 && tokens[0] < 0;
    note(s, "%s: %zu tokens%s", s->prompt_cache, f->n_held,
         f->unknown ? " that it does not tell; the prompt continues them as it is" : "");
    return 0;
}

int prompt_file_sync(machine *m, const prompt_file *f, id_list *ids, size_t *n_reused,
                     const char **reason)
{
    if (!f->unknown) {
        return machine_sync(m, ids, n_reused, reason);
    }
    int32_t bos = kvs_tokenizer_special(kvs_model_tokenizer(m->model), KVS_SPECIAL_BOS);
    if (ids->n > 1 && ids->ids[0] == bos) { /* a text begins once */
        memmove(ids->ids, ids->ids + 1, --ids->n * sizeof *ids->ids);
    }
    *n_reused = f->n_held;
    return machine_append(m, ids, reason);
}

int prompt_file_save(machine *m, const prompt_file *f, bool after_answer)
{
    const settings *s = m->s;
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t n = 0;
    const int32_t *tokens = kvs_session_tokens(m->session, &n);
    if (!s->prompt_cache || n == 0 || (after_answer ? !s->prompt_cache_all : f->found)) {
        return 0;
    }
    if (!after_answer && s->prompt_cache_all) { /* written once, when all is there */
        return 0;
    }
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    if (!f->unknown) {
        o.tokens = tokens;
        o.n_tokens = n;
    }
    kvs_status st = kvs_prompt_cache_save(kvs_session_cache(m->session), &o, s->prompt_cache, &err);
    if (st != KVS_OK) {
        return fail_err(EXIT_FAILED, st, &err, NULL);
    }
    note(s, "%s: %zu tokens written", s->prompt_cache, n);
    return 0;
}
