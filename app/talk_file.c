/* SPDX-License-Identifier: MIT */
/* talk_file.c: a conversation as a JSON file: messages, turns and exact ids, and what they belong
 * to. A file of another model or vocabulary is refused: its ids would mean something else. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "talk.h"

#define MAX_FILE ((size_t)256 << 20)

static uint64_t vocabulary_hash(const kvs_tokenizer *tok)
{
    uint64_t h = 0xcbf29ce484222325u;
    size_t n = kvs_tokenizer_size(tok);
    for (size_t id = 0; id < n; id++) {
        size_t len = 0;
        const char *text = kvs_tokenizer_text(tok, (int32_t)id, &len);
        for (size_t i = 0; i < len; i++) {
            h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
        }
        h = (h ^ 0xffu) * 0x100000001b3u;
    }
    return h;
}

static void put_hash(FILE *f, const char *key, uint64_t hash)
{
    (void)fprintf(f, "\"%s\":\"%016" PRIx64 "\"", key, hash);
}

/* What the messages, as they are written, have ids of: a reader renders them to know the prompt. A
 * system message that came after the prompt is none of it. */
static const char *ids_of(const talk *t, const talk_turn *turn)
{
    kvs_value *now = NULL;
    bool same = turn->prompt &&
                chat_render(t->template, t->messages, turn->n_messages - 1, true, &now) == 0;
    if (same) {
        size_t n = 0;
        size_t n_now = 0;
        const char *p = kvs_value_text(turn->prompt, &n);
        const char *q = kvs_value_text(now, &n_now);
        same = n == n_now && memcmp(p, q, n) == 0;
    }
    kvs_value_free(now);
    return !same ? ",\"ids_of\":\"nothing\"" : turn->answer_gone ? ",\"ids_of\":\"prompt\"" : "";
}

static void write_all(FILE *f, const talk *t)
{
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    (void)kvs_model_get_info(t->model, &info);
    (void)fputs("{\"format\":\"kvstate-chat\",\"version\":1,\"model\":{\"arch\":", f);
    json_text(f, info.arch, strlen(info.arch));
    (void)fputs(",\"name\":", f);
    json_text(f, info.name, strlen(info.name));
    (void)fprintf(f, ",\"n_params\":%" PRIu64 ",", info.n_params);
    put_hash(f, "vocabulary", vocabulary_hash(kvs_model_tokenizer(t->model)));
    (void)fputs("},", f);
    put_hash(f, "template", chat_hash(t->template));
    (void)fputs(",\n\"messages\":[", f);
    for (size_t i = 0; i < t->n_messages; i++) {
        (void)fprintf(f, "%s\n{\"role\":\"%s\",\"content\":", i ? "," : "", t->messages[i].role);
        json_text(f, t->messages[i].text, t->messages[i].n);
        (void)fputc('}', f);
    }
    (void)fputs("],\n\"turns\":[", f);
    for (size_t i = 0; i < t->n_turns; i++) {
        const talk_turn *turn = &t->turns[i];
        (void)fprintf(f, "%s{\"messages\":%zu,\"prompt_ids\":%zu,\"ids\":%zu%s}", i ? "," : "",
                      turn->n_messages, turn->n_prompt_ids, turn->n_ids, ids_of(t, turn));
    }
    (void)fputs("],\n\"ids\":[", f);
    for (size_t i = 0; i < t->ids.n; i++) {
        (void)fprintf(f, "%s%d", i ? "," : "", t->ids.ids[i]);
    }
    (void)fputs("]}\n", f);
}

/* Written beside it and renamed: a file that is there stays whole. */
int talk_save(const talk *t, const char *path)
{
    size_t n = strlen(path) + 8;
    char *temporary = malloc(n);
    if (!temporary) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    (void)snprintf(temporary, n, "%s.XXXXXX", path);
    int fd = mkstemp(temporary); /* 0600 */
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    int rc = 0;
    if (!f) {
        rc = fail(EXIT_FAILED, "%s: %s", path, strerror(errno));
        if (fd >= 0) {
            (void)close(fd);
            (void)unlink(temporary);
        }
        free(temporary);
        return rc;
    }
    write_all(f, t);
    bool bad = fflush(f) != 0 || ferror(f) || fsync(fd) != 0;
    bad = fclose(f) != 0 || bad;
    if (bad || rename(temporary, path) != 0) {
        rc = fail(EXIT_FAILED, "%s: %s", path, strerror(errno));
        (void)unlink(temporary);
    }
    free(temporary);
    return rc;
}

/* ---- reading */

static int bad_file(const char *path, const char *what)
{
    return fail(EXIT_INPUT, "%s: %s", path, what);
}

static bool same_text(const kvs_value *v, const char *want)
{
    size_t n = 0;
    const char *p = kvs_value_text(v, &n);
    return p && n == strlen(want) && memcmp(p, want, n) == 0;
}

static int check_model(const talk *t, const kvs_value *root, const char *path, bool *same_template)
{
    char hash[24];
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    (void)kvs_model_get_info(t->model, &info);
    const kvs_value *m = kvs_value_get(root, "model");
    if (!same_text(kvs_value_get(root, "format"), "kvstate-chat")) {
        return bad_file(path, "not a conversation of kvstate chat");
    }
    if (kvs_value_int(kvs_value_get(root, "version"), 0) != 1) {
        return bad_file(path, "of a version that is not known here");
    }
    (void)snprintf(hash, sizeof hash, "%016" PRIx64,
                   vocabulary_hash(kvs_model_tokenizer(t->model)));
    if (!same_text(kvs_value_get(m, "vocabulary"), hash)) {
        return bad_file(path, "its ids belong to another vocabulary");
    }
    if (!same_text(kvs_value_get(m, "arch"), info.arch) ||
        !same_text(kvs_value_get(m, "name"), info.name) ||
        kvs_value_int(kvs_value_get(m, "n_params"), -1) != (int64_t)info.n_params) {
        size_t n = 0;
        const char *name = kvs_value_text(kvs_value_get(m, "name"), &n);
        return fail(EXIT_INPUT, "%s: of another model, \"%.80s\"", path, name ? name : "");
    }
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, chat_hash(t->template));
    *same_template = same_text(kvs_value_get(root, "template"), hash);
    return 0;
}

static const char *known_role(const kvs_value *v)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (same_text(v, roles[i])) {
            return roles[i];
        }
    }
    return NULL;
}

static int read_messages(talk *t, const kvs_value *list, const char *path)
{
    size_t n = kvs_value_size(list);
    t->messages = calloc(n + 1, sizeof *t->messages);
    t->cap_messages = n + 1;
    if (!t->messages) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        const kvs_value *v = kvs_value_at(list, i);
        size_t len = 0;
        const char *text = kvs_value_text(kvs_value_get(v, "content"), &len);
        const char *role = known_role(kvs_value_get(v, "role"));
        bool system = role && strcmp(role, "system") == 0;
        bool first = i == (size_t)(talk_get_system(t) != NULL);
        bool user = role && strcmp(role, "user") == 0;
        bool after_user = i > 0 && strcmp(t->messages[i - 1].role, "user") == 0;
        if (!text || !role || (system ? i > 0 : first ? !user : user == after_user)) {
            return bad_file(path, "a message that is malformed or out of turn");
        }
        char *copy = malloc(len + 1);
        if (!copy) {
            return fail(EXIT_MEMORY, "out of memory");
        }
        memcpy(copy, text, len + 1);
        t->messages[t->n_messages++] = (chat_message){role, copy, len};
    }
    return 0;
}

static int read_ids(talk *t, const kvs_value *list, const char *path)
{
    size_t n_vocab = kvs_tokenizer_size(kvs_model_tokenizer(t->model));
    for (size_t i = 0; i < kvs_value_size(list); i++) {
        int64_t id = kvs_value_int(kvs_value_at(list, i), -1);
        if (id < 0 || (uint64_t)id >= n_vocab) {
            return bad_file(path, "an id outside of the vocabulary");
        }
        int32_t x = (int32_t)id;
        int rc = ids_add(&t->ids, &x, 1);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* Each turn ends with an answer, and they grow up to what there is. */
static int read_turns(talk *t, const kvs_value *list, const char *path, bool same_template)
{
    size_t n = kvs_value_size(list);
    size_t ids = 0;
    size_t messages = talk_get_system(t) ? 1 : 0;
    t->turns = calloc(n + 1, sizeof *t->turns);
    t->cap_turns = n + 1;
    if (!t->turns) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        const kvs_value *v = kvs_value_at(list, i);
        int64_t m = kvs_value_int(kvs_value_get(v, "messages"), -1);
        int64_t p = kvs_value_int(kvs_value_get(v, "prompt_ids"), -1);
        int64_t e = kvs_value_int(kvs_value_get(v, "ids"), -1);
        messages += 2;
        if (m != (int64_t)messages || messages > t->n_messages || p < (int64_t)ids || e < p ||
            e > (int64_t)t->ids.n) {
            return bad_file(path, "turns that do not fit its messages and ids");
        }
        ids = (size_t)e;
        talk_turn *turn = &t->turns[t->n_turns++];
        const kvs_value *of = kvs_value_get(v, "ids_of");
        bool known = same_template && !same_text(of, "nothing");
        *turn = (talk_turn){NULL, (size_t)p, (size_t)e, messages, same_text(of, "prompt")};
        int rc =
            known ? chat_render(t->template, t->messages, messages - 1, true, &turn->prompt) : 0;
        if (rc != 0) {
            return rc;
        }
    }
    if (messages != t->n_messages || ids != t->ids.n) {
        return bad_file(path, "turns that do not fit its messages and ids");
    }
    return 0;
}

static int read_root(const char *path, kvs_ctx *ctx, kvs_value **root)
{
    struct stat st;
    kvs_err err = {KVS_OK, 0, "", ""};
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0) {
        int rc = fail(EXIT_INPUT, "%s: %s", path, strerror(errno));
        if (f) {
            (void)fclose(f);
        }
        return rc;
    }
    size_t n = st.st_size > 0 ? (size_t)st.st_size : 0;
    if (!S_ISREG(st.st_mode) || n > MAX_FILE) {
        (void)fclose(f);
        return bad_file(path, "no regular file of a sane size");
    }
    char *text = malloc(n + 1);
    n = text ? fread(text, 1, n, f) : 0;
    (void)fclose(f);
    if (!text) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    kvs_status status = kvs_value_parse(ctx, text, n, 0, root, &err);
    free(text);
    if (status != KVS_OK) {
        return fail(status == KVS_E_NOMEM ? EXIT_MEMORY : EXIT_INPUT, "%s: %s", path, err.msg);
    }
    return 0;
}

int talk_load(talk *t, const settings *s, kvs_ctx *ctx, const char *path)
{
    kvs_value *root = NULL;
    bool same_template = false;
    talk fresh = {.template = t->template, .model = t->model};
    int rc = read_root(path, ctx, &root);
    if (rc == 0) {
        rc = check_model(t, root, path, &same_template);
    }
    if (rc == 0) {
        rc = read_messages(&fresh, kvs_value_get(root, "messages"), path);
    }
    if (rc == 0) {
        rc = read_ids(&fresh, kvs_value_get(root, "ids"), path);
    }
    if (rc == 0) {
        rc = read_turns(&fresh, kvs_value_get(root, "turns"), path, same_template);
    }
    if (rc == 0 && !same_template) {
        note(s, "%s was written with another chat template: its text is made into tokens anew",
             path);
    }
    kvs_value_free(root);
    if (rc != 0) {
        talk_free(&fresh);
        return rc;
    }
    talk_free(t);
    *t = fresh;
    return 0;
}
