/* SPDX-License-Identifier: MIT */
/* cmd_cache.c: kvstate cache: the directory of saved state from outside.
 *
 * ls changes nothing and works while another process has the directory open; verify sets damage aside
 * if it can have the directory, and only reports it otherwise; gc, and import need it to themselves. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands.h"
#include "kvstate/store.h"
#include "saved.h"
#include "util.h"

#define KEY_DIGITS 12 /* shown; any unique beginning is taken */

typedef struct cache {
    const settings *s;
    kvs_ctx *ctx;
    kvs_store *store;
    char dir[1024];
} cache;

static int default_dir(cache *c)
{
    return saved_dir(c->s, c->dir, sizeof c->dir)
               ? 0
               : fail(EXIT_USAGE, "where is the saved state? Give --cache-dir DIR");
}

static int open_cache(cache *c, uint32_t flags)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    o.flags = flags;
    kvs_status st = kvs_store_open(c->ctx, c->dir, &o, &c->store, &err);
    if (st == KVS_OK) {
        return 0;
    }
    if (st == KVS_E_NOTFOUND && !c->s->cache_dir) {
        return fail(EXIT_INPUT, "nothing has been saved yet: there is no %s", c->dir);
    }
    return fail_err(st == KVS_E_STATE ? EXIT_FAILED : EXIT_INPUT, st, &err, NULL);
}

static void hex(char *dst, const uint8_t *bytes, size_t digits)
{
    for (size_t i = 0; i < digits; i++) {
        dst[i] = "0123456789abcdef"[bytes[i / 2] >> (i % 2 ? 0 : 4) & 15];
    }
    dst[digits] = '\0';
}

static void when(char *dst, size_t n, uint64_t ms)
{
    time_t t = (time_t)(ms / 1000);
    struct tm tm;
    if (!gmtime_r(&t, &tm) || strftime(dst, n, "%Y-%m-%d %H:%M", &tm) == 0) {
        (void)snprintf(dst, n, "-");
    }
}

/* ---- ls */

static void json_u64(const char *name, uint64_t value)
{
    (void)printf(",\"%s\":%llu", name, (unsigned long long)value);
}

static void json_stats(const kvs_store_stats *st)
{
    (void)printf("\"entries\":%llu", (unsigned long long)st->entries);
    json_u64("disk_bytes", st->disk_bytes);
    json_u64("live_bytes", st->live_bytes);
    json_u64("segments", st->segments);
    json_u64("blocks", st->blocks);
    json_u64("other_format", st->other_format);
    json_u64("unreadable", st->unreadable);
    json_u64("quarantined", st->quarantined);
    (void)fputs(",\"reason\":", stdout);
    json_text(stdout, st->reason, strlen(st->reason));
}

static void json_entry(cache *c, const kvs_entry_info *i, bool first)
{
    char key[65];
    char identity[65];
    char ns[KVS_STORE_NS_MAX];
    size_t n = 0;
    hex(key, i->key, 64);
    hex(identity, i->identity, 64);
    (void)kvs_store_entry_ns(c->store, i->entry, ns, sizeof ns, &n);
    (void)printf("%s{\"key\":\"%s\",\"identity\":\"%s\",\"namespace\":", first ? "" : ",", key,
                 identity);
    json_text(stdout, ns, n);
    json_u64("tokens", i->n_ids);
    json_u64("bytes", i->bytes);
    json_u64("parts", i->n_parts);
    json_u64("kind", i->kind);
    json_u64("cost", i->cost);
    json_u64("uses", i->uses);
    json_u64("last_use", i->last_use);
    json_u64("created_ms", i->created_ms);
    (void)printf(",\"priority\":%d}", i->priority);
}

static void text_entry(cache *c, const kvs_entry_info *i)
{
    char key[KEY_DIGITS + 1];
    char bytes[32];
    char made[32];
    char ns[41];
    size_t n = 0;
    hex(key, i->key, KEY_DIGITS);
    when(made, sizeof made, i->created_ms);
    (void)kvs_store_entry_ns(c->store, i->entry, ns, sizeof ns - 1, &n);
    n = n < sizeof ns - 1 ? n : sizeof ns - 1;
    for (size_t k = 0; k < n; k++) { /* whatever is in it, it goes to a terminal */
        ns[k] = (char)(ns[k] >= ' ' && ns[k] <= '~' ? ns[k] : '?');
    }
    ns[n] = '\0';
    (void)printf("%-*s  %8u  %11s  %4u  %5u  %s  %s\n", KEY_DIGITS, key, i->n_ids,
                 format_bytes(bytes, sizeof bytes, (double)i->bytes), i->kind, i->uses, made, ns);
}

static void text_stats(const cache *c, const kvs_store_stats *st)
{
    char a[32];
    char b[32];
    (void)printf("%llu %s, %s on disk, %s of it in use, in %s\n", (unsigned long long)st->entries,
                 st->entries == 1 ? "entry" : "entries",
                 format_bytes(a, sizeof a, (double)st->disk_bytes),
                 format_bytes(b, sizeof b, (double)st->live_bytes), c->dir);
    if (st->other_format + st->unreadable + st->quarantined > 0) {
        (void)printf("%llu files of another format, %llu unreadable, %llu set aside: %s\n",
                     (unsigned long long)st->other_format, (unsigned long long)st->unreadable,
                     (unsigned long long)st->quarantined, st->reason);
    }
}

static int ls(cache *c)
{
    kvs_entry_info i = KVS_ENTRY_INFO_INIT;
    kvs_store_stats st = KVS_STORE_STATS_INIT;
    kvs_entry cursor = 0;
    bool first = true;
    (void)kvs_store_get_stats(c->store, &st);
    if (c->s->json) {
        (void)fputs("{\"directory\":", stdout);
        json_text(stdout, c->dir, strlen(c->dir));
        (void)fputs(",", stdout);
        json_stats(&st);
        (void)fputs(",\"list\":[", stdout);
    } else if (st.entries > 0) {
        (void)printf("%-*s  %8s  %11s  %4s  %5s  %-16s  %s\n", KEY_DIGITS, "key", "tokens", "bytes",
                     "kind", "uses", "saved (UTC)", "namespace");
    }
    while (kvs_store_list(c->store, &cursor, &i) == KVS_OK) {
        if (c->s->json) {
            json_entry(c, &i, first);
        } else {
            text_entry(c, &i);
        }
        first = false;
    }
    if (c->s->json) {
        (void)puts("]}");
    } else {
        text_stats(c, &st);
    }
    return 0;
}

/* ---- verify, gc */

static int verify(cache *c)
{
    kvs_verify_result r = KVS_VERIFY_RESULT_INIT;
    kvs_store_stats st = KVS_STORE_STATS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status rc = kvs_store_verify(c->store, &r, &err);
    if (rc != KVS_OK && rc != KVS_NO) {
        return fail_err(EXIT_FAILED, rc, &err, NULL);
    }
    (void)kvs_store_get_stats(c->store, &st);
    if (c->s->json) {
        (void)printf("{\"checked_entries\":%llu", (unsigned long long)r.entries);
        json_u64("checked_blocks", r.blocks);
        json_u64("checked_bytes", r.bytes);
        json_u64("bad_entries", r.bad_entries);
        json_u64("bad_blocks", r.bad_blocks);
        json_u64("not_read", r.unreadable);
        (void)fputs(",", stdout);
        json_stats(&st);
        (void)puts("}");
    } else {
        char a[32];
        (void)printf("%llu entries, %llu blocks, %s checked; %llu entries damaged\n",
                     (unsigned long long)r.entries, (unsigned long long)r.blocks,
                     format_bytes(a, sizeof a, (double)r.bytes), (unsigned long long)r.bad_entries);
        text_stats(c, &st);
    }
    if (r.unreadable > 0 || st.unreadable > 0) {
        return fail(EXIT_FAILED, "some files could not be read: %s", st.reason);
    }
    return rc == KVS_NO || st.quarantined > 0
               ? fail(EXIT_INPUT, "damage was found%s: %s",
                      st.read_only ? "" : " and set aside in the directory quarantine", st.reason)
               : 0;
}

static int gc(cache *c)
{
    kvs_store_stats a = KVS_STORE_STATS_INIT;
    kvs_store_stats b = KVS_STORE_STATS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    (void)kvs_store_get_stats(c->store, &a);
    kvs_status st = KVS_OK;
    if (c->s->cache_disk > 0) {
        st = kvs_store_limit(c->store, (uint64_t)c->s->cache_disk << 20, &err);
    }
    if (st == KVS_OK) {
        st = kvs_store_gc(c->store, NULL, &err);
    }
    if (st != KVS_OK) {
        return fail_err(EXIT_FAILED, st, &err, NULL);
    }
    (void)kvs_store_get_stats(c->store, &b);
    uint64_t freed = a.disk_bytes > b.disk_bytes ? a.disk_bytes - b.disk_bytes : 0;
    if (c->s->json) {
        (void)printf("{\"freed_bytes\":%llu", (unsigned long long)freed);
        json_u64("forgotten", a.entries - b.entries);
        (void)fputs(",", stdout);
        json_stats(&b);
        (void)puts("}");
    } else {
        char text[32];
        (void)printf("%s freed, entries forgotten: %llu\n",
                     format_bytes(text, sizeof text, (double)freed),
                     (unsigned long long)(a.entries - b.entries));
        text_stats(c, &b);
    }
    return 0;
}

/* ---- export, import */

static int by_key(cache *c, const char *text, kvs_entry *out)
{
    kvs_entry_info i = KVS_ENTRY_INFO_INIT;
    kvs_entry cursor = 0;
    int found = 0;
    size_t n = strlen(text);
    if (n < 4 || n > 64 || strspn(text, "0123456789abcdef") != n) {
        return fail(EXIT_USAGE, "\"%s\" is no key: 4 to 64 hexadecimal digits of what ls shows",
                    text);
    }
    while (kvs_store_list(c->store, &cursor, &i) == KVS_OK) {
        char key[65];
        hex(key, i.key, 64);
        if (strncmp(key, text, n) == 0) {
            *out = i.entry;
            found++;
        }
    }
    if (found != 1) {
        return fail(EXIT_INPUT,
                    found ? "%s begins the key of more than one entry"
                          : "%s begins the key of no entry",
                    text);
    }
    return 0;
}

static int export_entry(cache *c, const char *key, const char *path)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_entry e = 0;
    int rc = by_key(c, key, &e);
    if (rc != 0) {
        return rc;
    }
    kvs_status st = kvs_store_export(c->store, e, path, &err);
    return st == KVS_OK ? 0
                        : fail_err(st == KVS_E_FORMAT ? EXIT_INPUT : EXIT_FAILED, st, &err, NULL);
}

static int import_entry(cache *c, const char *path)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_entry e = 0;
    kvs_entry_info i = KVS_ENTRY_INFO_INIT;
    kvs_status st = kvs_store_import(c->store, path, &e, &err);
    if (st != KVS_OK) {
        return fail_err(EXIT_INPUT, st, &err, NULL);
    }
    if (kvs_store_entry_info(c->store, e, &i) == KVS_OK) {
        char key[65];
        hex(key, i.key, 64);
        (void)printf(c->s->json ? "{\"key\":\"%s\"}\n" : "%s\n", key);
    }
    return 0;
}

static int act(cache *c)
{
    static const struct action {
        const char *name;
        uint32_t n_args; /* its own word included */
        uint32_t flags;
    } actions[] = {{"ls", 1, KVS_STORE_READONLY | KVS_STORE_NO_CREATE},
                   {"verify", 1, KVS_STORE_READONLY_BUSY | KVS_STORE_NO_CREATE},
                   {"gc", 1, KVS_STORE_NO_CREATE},
                   {"export", 3, KVS_STORE_READONLY | KVS_STORE_NO_CREATE},
                   {"import", 2, 0}};
    const settings *s = c->s;
    const char *what = s->args[0];
    size_t i = 0;
    while (i < sizeof actions / sizeof actions[0] && strcmp(actions[i].name, what) != 0) {
        i++;
    }
    if (i == sizeof actions / sizeof actions[0]) {
        return fail(EXIT_USAGE, "\"%s\" is none of ls, verify, gc, export, import, dump, simulate",
                    what);
    }
    if (s->n_args != actions[i].n_args) {
        return fail(EXIT_USAGE, "cache %s takes %u arguments; kvstate cache --help", what,
                    actions[i].n_args - 1);
    }
    int rc = open_cache(c, actions[i].flags);
    if (rc != 0) {
        return rc;
    }
    switch (i) {
    case 0:
        return ls(c);
    case 1:
        return verify(c);
    case 2:
        return gc(c);
    case 3:
        return export_entry(c, s->args[1], s->args[2]);
    default:
        return import_entry(c, s->args[1]);
    }
}

int cmd_cache(settings *s)
{
    static cache c;
    c.s = s;
    if (s->n_args == 0) {
        return fail(EXIT_USAGE,
                    "cache: what is to be done? ls, verify, gc, export, import, dump or simulate");
    }
    if (strcmp(s->args[0], "simulate") == 0) {
        return s->n_args == 2
                   ? cmd_cache_simulate(s, s->args[1])
                   : fail(EXIT_USAGE, "cache simulate takes a trace, - for standard input");
    }
    int rc = default_dir(&c);
    if (rc == 0 && strcmp(s->args[0], "dump") == 0) {
        return s->n_args <= 2 ? cmd_cache_dump(s, s->n_args == 2 ? s->args[1] : c.dir)
                              : fail(EXIT_USAGE, "cache dump takes one argument at most");
    }
    if (rc == 0) {
        rc = make_ctx(s, &c.ctx);
    }
    if (rc == 0) {
        rc = act(&c);
    }
    kvs_store_close(c.store);
    kvs_ctx_free(c.ctx);
    return rc;
}
