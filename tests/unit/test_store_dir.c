/* SPDX-License-Identifier: MIT */
/* test_store_dir.c: the object store on a real directory, with threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <time.h>

#include "support/store_unit.h"

static void make_temp(char *dir, size_t n)
{
    (void)snprintf(dir, n, "/tmp/kvs-store-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static void clean(const char *dir)
{
    char cmd[256];
    (void)snprintf(cmd, sizeof cmd, "chmod -R u+rwx %s && rm -rf %s", dir, dir);
    assert_int_equal(system(cmd), 0); /* NOLINT */
}

static void on_done(void *user, kvs_status status, kvs_entry entry, const kvs_err *err)
{
    (void)err;
    assert_int_equal(status, KVS_OK);
    assert_true(entry != 0);
    __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
}

static void on_get(void *user, kvs_status status, const kvs_err *err)
{
    (void)err;
    __atomic_store_n((int *)user, status == KVS_OK ? 1 : -1, __ATOMIC_SEQ_CST);
}

static void test_threads(void **state)
{
    (void)state;
    char dir[64];
    make_temp(dir, sizeof dir);
    kvs_store *s = NULL;
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    o.max_queue_items = 4;
    assert_int_equal(kvs_store_open(ctx, dir, &o, &s, NULL), KVS_OK);
    int done = 0;
    int queued = 0;
    static rig_entry r;
    kvs_store_put_opts po = KVS_STORE_PUT_OPTS_INIT;
    po.done = on_done;
    po.done_user = &done;
    for (uint32_t k = 0; k < 60; k++) {
        rig_make(&r, k, 0);
        po.flags = k % 2 ? KVS_PUT_WAIT : 0;
        kvs_status st = kvs_store_put(s, &r.key, r.parts, RIG_PARTS, &po, NULL);
        assert_true(st == KVS_OK || (st == KVS_NO && k % 2 == 0));
        queued += st == KVS_OK;
    }
    assert_int_equal(kvs_store_flush(s, NULL), KVS_OK);
    assert_int_equal(done, queued);
    kvs_store_stats st = stats_of(s);
    assert_int_equal(st.written, queued);
    assert_int_equal(st.refused, 60 - queued);
    assert_int_equal(st.queued_items, 0);
    assert_int_equal(st.queued_bytes, 0);
    rig_make(&r, 1, 0);
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    assert_int_equal(kvs_store_find(s, &r.key, NULL, &h, NULL), KVS_OK);
    static uint8_t out[1200];
    kvs_store_buf buf = {1, 0, r.parts[1].bytes, out};
    int got = 0;
    assert_int_equal(kvs_store_get_async(s, h.entry, &buf, 1, on_get, &got, NULL), KVS_OK);
    while (__atomic_load_n(&got, __ATOMIC_SEQ_CST) == 0) {
        struct timespec t = {0, 100000};
        (void)nanosleep(&t, NULL);
    }
    assert_int_equal(got, 1);
    assert_memory_equal(out, r.bytes[1], (size_t)r.parts[1].bytes);
    kvs_store_close(s); /* the pin goes with it */
    clean(dir);
}

static void test_directory(void **state)
{
    (void)state;
    char dir[64];
    char path[256];
    struct stat sb;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_store *s = NULL;
    kvs_store *t = NULL;
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    make_temp(dir, sizeof dir);
    (void)chmod(dir, 0755);
    assert_int_equal(kvs_store_open(ctx, dir, NULL, &s, NULL), KVS_OK);
    put(s, 1, 1);
    put(s, 2, 1);
    assert_int_equal(stat(dir, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    char name[KVS__ENTRY_NAME + 1];
    kvs_entry_info info = KVS_ENTRY_INFO_INIT;
    assert_int_equal(kvs_store_entry_info(s, entry_of(s, 1), &info), KVS_OK);
    kvs__entry_name(info.key, name);
    (void)snprintf(path, sizeof path, "%s/entries/%s", dir, name);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    (void)chmod(path, 0644);
    /* one writer */
    assert_int_equal(kvs_store_open(ctx, dir, NULL, &t, &err), KVS_E_STATE);
    assert_non_null(strstr(err.msg, "in use by another process"));
    o.flags = KVS_STORE_READONLY_BUSY;
    assert_int_equal(kvs_store_open(ctx, dir, &o, &t, NULL), KVS_OK);
    assert_int_equal(stats_of(t).read_only, 1);
    assert_int_equal(rig_get(t, 1), 1);
    assert_int_equal(rig_put(t, 3, 1, 0, NULL), KVS_E_STATE);
    assert_int_equal(kvs_store_remove(t, entry_of(t, 1), NULL), KVS_E_STATE);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0644);
    kvs_store_close(t);
    kvs_store_close(s);
    assert_int_equal(kvs_store_open(ctx, dir, NULL, &s, NULL), KVS_OK);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    /* the directory vanishes: a miss, and serving goes on */
    clean(dir);
    assert_int_equal(rig_get(s, 1), -3);
    assert_int_equal(rig_put(s, 3, 1, KVS_PUT_DURABLE, &err), KVS_E_IO);
    assert_true(stats_of(s).failed == 1 && stats_of(s).quarantined == 0);
    kvs_store_close(s);
    o.flags = KVS_STORE_NO_CREATE;
    assert_int_equal(kvs_store_open(ctx, dir, &o, &s, NULL), KVS_E_NOTFOUND);
    assert_int_equal(kvs_store_open(ctx, "/proc/self/stat", NULL, &s, NULL), KVS_E_IO);
}

/* A directory that others use is not closed to them, nor trusted where they may write. */
static void test_shared_directory(void **state)
{
    (void)state;
    char dir[64];
    char path[128];
    struct stat sb;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_store *s = NULL;
    make_temp(dir, sizeof dir);
    (void)snprintf(path, sizeof path, "%s/letter.tmp", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    (void)chmod(dir, 01777);
    assert_int_equal(kvs_store_open(ctx, dir, NULL, &s, &err), KVS_E_IO);
    assert_non_null(strstr(err.msg, "directory of its own"));
    assert_int_equal(stat(dir, &sb), 0);
    assert_int_equal(sb.st_mode & 07777, 01777);
    (void)chmod(dir, 0755);
    assert_int_equal(kvs_store_open(ctx, dir, NULL, &s, NULL), KVS_OK);
    put(s, 1, 1);
    kvs_store_close(s);
    assert_int_equal(stat(dir, &sb), 0);
    assert_int_equal(sb.st_mode & 07777, 0755);
    assert_int_equal(stat(path, &sb), 0);
    (void)snprintf(path, sizeof path, "%s/entries", dir);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    clean(dir);
    /* somebody's weights are not ours to write over */
    make_temp(dir, sizeof dir);
    const char *const names[] = {"weights", "notes"};
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fclose(f), 0);
    }
    assert_int_equal(kvs_store_open(ctx, dir, NULL, &s, &err), KVS_E_IO);
    assert_non_null(strstr(err.msg, "directory of its own"));
    clean(dir);
    /* to look at, or to clear out, is not to make one */
    make_temp(dir, sizeof dir);
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    o.flags = KVS_STORE_NO_CREATE;
    assert_int_equal(kvs_store_open(ctx, dir, &o, &s, &err), KVS_E_NOTFOUND);
    (void)snprintf(path, sizeof path, "%s/lock", dir);
    assert_int_equal(stat(path, &sb), -1);
    clean(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_directory),
        cmocka_unit_test(test_shared_directory),
    };
    return cmocka_run_group_tests(tests, start, end);
}
