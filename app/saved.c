/* SPDX-License-Identifier: MIT */
/* saved.c: see saved.h. */
#include "saved.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define MIB            ((uint64_t)1 << 20)
#define RAM_MIB        64u
#define DISK_MIB       4096u /* and a tenth of what is free, if that is less */
#define PROGRESS_S     0.25
#define MAX_ANSWER_IDS ((size_t)1 << 20)

bool saved_dir(const settings *s, char *dst, size_t n)
{
    const char *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int len = -1;
    if (s->cache_dir) {
        len = snprintf(dst, n, "%s", s->cache_dir);
    } else if (xdg && xdg[0] == '/') {
        len = snprintf(dst, n, "%s/kvstate/state", xdg);
    } else if (home && home[0] == '/') {
        len = snprintf(dst, n, "%s/.cache/kvstate/state", home);
    }
    return len > 0 && (size_t)len < n;
}

/* Its parents; the store makes the last one. */
static void make_parents(char *path)
{
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        (void)mkdir(path, 0700); /* what is missing after all the store reports */
        *p = '/';
    }
}

static uint64_t disk_limit(const settings *s, char *path)
{
    struct statvfs v;
    if (s->cache_disk > 0) {
        return s->cache_disk * MIB;
    }
    uint64_t limit = DISK_MIB * MIB;
    char *slash = strrchr(path, '/');
    if (slash && slash != path) { /* the directory may not exist yet */
        *slash = '\0';
        if (statvfs(path, &v) == 0) {
            uint64_t tenth = (uint64_t)v.f_bavail * v.f_frsize / 10;
            limit = tenth < limit ? tenth : limit;
        }
        *slash = '/';
    }
    return limit > MIB ? limit : MIB;
}

kvs_prefix_cache *saved_prefixes(machine *m)
{
    const settings *s = m->s;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    if (s->no_cache || kvs_plan_kv_block(m->plan) == 0) {
        return NULL;
    }
    o.plan = m->plan;
    o.max_bytes = (size_t)(s->cache_ram > 0 ? s->cache_ram : RAM_MIB) * MIB;
    o.draft_model = m->draft_model;
    kvs_status st = kvs_prefix_cache_new(m->ctx, m->model, &o, &m->prefixes, &err);
    if (st != KVS_OK && o.draft_model) {
        note(s, "the draft model's state is not kept in memory: %s", err.msg);
        o.draft_model = NULL;
        st = kvs_prefix_cache_new(m->ctx, m->model, &o, &m->prefixes, &err);
    }
    if (st != KVS_OK) {
        note(s, "earlier prompts are not kept in memory: %s", err.msg);
    }
    return m->prefixes;
}

void saved_open(machine *m)
{
    const settings *s = m->s;
    char dir[1024];
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_persist_opts o = KVS_PERSIST_OPTS_INIT;
    o.note_bytes = s->cache_ram * MIB;
    if (s->no_cache ||
        s->prompt_cache) { /* a file's tokens may be unknown: no names for its state */
        return;
    }
    if (saved_dir(s, dir, sizeof dir)) {
        make_parents(dir);
        o.dir = dir;
        o.max_bytes = disk_limit(s, dir);
    }
    kvs_status st = kvs_session_persist(m->session, &o, &err);
    if (st != KVS_OK && o.dir) {
        note(s, "state is not saved: %s", err.msg);
        o.dir = NULL;
        (void)kvs_session_persist(m->session, &o, NULL);
        return;
    }
    kvs_reuse r = KVS_REUSE_INIT;
    (void)kvs_session_get_reuse(m->session, &r);
    if (r.read_only) {
        note(s, "saved state is only read: %s", r.save_reason);
    }
}

void saved_report(const machine *m)
{
    kvs_reuse r = KVS_REUSE_INIT;
    char bytes[32];
    (void)kvs_session_get_reuse(m->session, &r);
    unsigned long long memory = r.n_memory + r.n_shared;
    if (r.n_disk > 0) {
        note(m->s, "reused %llu tokens from disk: %s in %.0f ms", (unsigned long long)r.n_disk,
             format_bytes(bytes, sizeof bytes, (double)r.disk_bytes), 1e3 * r.disk_s);
    } else if (memory > 0) {
        note(m->s, "reused %llu tokens from memory", memory);
    } else if (m->s->verbose && r.has_store && r.reason[0]) {
        note(m->s, "nothing reused: %s", r.reason);
    }
    if (r.not_saved > 0) {
        note(m->s, "state was not saved: %s", r.save_reason);
    }
}

uint64_t saved_reused(const machine *m)
{
    kvs_reuse r = KVS_REUSE_INIT;
    (void)kvs_session_get_reuse(m->session, &r);
    return r.n_disk + r.n_memory + r.n_shared;
}

void saved_json(FILE *out, const machine *m)
{
    kvs_reuse r = KVS_REUSE_INIT;
    (void)kvs_session_get_reuse(m->session, &r);
    (void)fprintf(out, ",\"reused_from\":\"%s\",\"restore_s\":%.4f,\"restore_bytes\":%llu",
                  r.n_disk              ? "disk"
                  : saved_reused(m) > 0 ? "memory"
                                        : "none",
                  r.disk_s, (unsigned long long)r.disk_bytes);
    (void)fputs(",\"cache_reason\":", out);
    json_text(out, r.reason, strlen(r.reason));
    if (m->draft_model) {
        kvs_spec_stats st = machine_drafts(m);
        (void)fprintf(out,
                      ",\"draft_reused\":%llu,\"draft_reused_from\":\"%s\",\"draft_computed\":%llu",
                      (unsigned long long)st.draft_reused, machine_draft_tier(&st),
                      (unsigned long long)st.draft_computed);
    }
}

/* ---- answers under way */

/* Numbers as their bits: what prints alike is not always the same. */
void saved_request(machine *m, const char *what)
{
    const settings *s = m->s;
    float f[] = {s->temperature,      s->top_p, s->min_p, s->repeat_penalty, s->presence_penalty,
                 s->frequency_penalty};
    uint32_t bits[sizeof f / sizeof f[0]];
    memcpy(bits, f, sizeof f);
    int len =
        snprintf(m->request, sizeof m->request,
                 "%s 1 n=%u eos=%d ctx=%u k=%u last=%u t=%x p=%x m=%x r=%x pp=%x fp=%x s=%d:%llu",
                 what, s->n_predict, s->ignore_eos, kvs_plan_n_ctx(m->plan), s->top_k,
                 s->repeat_last_n, bits[0], bits[1], bits[2], bits[3], bits[4], bits[5],
                 s->seed_given, (unsigned long long)(s->seed_given ? s->seed : 0));
    for (uint32_t i = 0; i < s->n_bias && len > 0 && (size_t)len < sizeof m->request; i++) {
        len += snprintf(m->request + len, sizeof m->request - (size_t)len, " b=%s", s->bias[i]);
    }
    m->n_request = len > 0 && (size_t)len < sizeof m->request ? (size_t)len : 0;
}

static kvs_answer describe(const machine *m, const id_list *prompt)
{
    kvs_answer a = KVS_ANSWER_INIT;
    a.request = (kvs_bytes){m->request, m->n_request};
    a.prompt = prompt->ids;
    a.n_prompt = prompt->n;
    a.seed = m->seed;
    return a;
}

bool saved_find(machine *m, const id_list *prompt, id_list *ids, uint64_t *seed)
{
    kvs_answer a = describe(m, prompt);
    size_t n = 0;
    if (m->n_request == 0 || m->s->no_cache ||
        kvs_session_find_answer(m->session, &a, NULL, 0, &n, NULL) != KVS_OK || n == 0 ||
        n > MAX_ANSWER_IDS) {
        return false;
    }
    int32_t *p = malloc(n * sizeof *p);
    bool ok = p && kvs_session_find_answer(m->session, &a, p, n, &n, NULL) == KVS_OK &&
              ids_add(ids, p, a.n_ids) == 0;
    free(p);
    *seed = a.seed;
    return ok;
}

void saved_progress(machine *m, const id_list *prompt, const id_list *ids)
{
    double now = now_seconds();
    if (m->n_request == 0 || m->s->no_cache || now - m->progress_at < PROGRESS_S) {
        return;
    }
    m->progress_at = now;
    kvs_answer a = describe(m, prompt);
    a.ids = ids->ids;
    a.n_ids = ids->n;
    m->progress_put = kvs_session_put_answer(m->session, &a, NULL) == KVS_OK || m->progress_put;
}

void saved_done(machine *m, const id_list *prompt)
{
    kvs_answer a = describe(m, prompt);
    if (m->progress_put) {
        (void)kvs_session_drop_answer(m->session, &a, NULL);
        m->progress_put = false;
    }
}
