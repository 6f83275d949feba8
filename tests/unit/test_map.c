/* SPDX-License-Identifier: MIT */
/* test_map.c: mapping files read-only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/map.h"

static void make_file(char *path, const char *text, size_t n)
{
    strcpy(path, "/tmp/kvs_map_XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), (ssize_t)n);
    assert_int_equal(close(fd), 0);
}

static void test_content(void **state)
{
    (void)state;
    char path[32];
    make_file(path, "seven b", 7);
    kvs__map m = {NULL, 0, {0}};
    kvs_err err = {0};
    assert_int_equal(kvs__map_open(path, &m, &err), KVS_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(m.bytes, 7);
    assert_int_equal((uintptr_t)m.data % 4096, 0);
    assert_memory_equal(m.data, "seven b", 7);
    assert_int_equal(err.msg[0], 0);
    kvs__map_close(&m);
    assert_true(!m.data && m.bytes == 0);
    kvs__map_close(&m);
}

/* Replacing a file by rename leaves an open mapping with what it had. */
static void test_replaced(void **state)
{
    (void)state;
    char path[32];
    char other[32];
    make_file(path, "before", 6);
    make_file(other, "x", 1);
    kvs__map m = {NULL, 0, {0}};
    assert_int_equal(kvs__map_open(path, &m, NULL), KVS_OK);
    assert_int_equal(rename(other, path), 0);
    assert_memory_equal(m.data, "before", 6);
    kvs__map_close(&m);
    assert_int_equal(unlink(path), 0);
}

static void test_empty(void **state)
{
    (void)state;
    char path[32];
    make_file(path, "", 0);
    kvs__map m = {NULL, 9, {0}};
    assert_int_equal(kvs__map_open(path, &m, NULL), KVS_OK);
    assert_true(m.data != NULL && m.bytes == 0);
    kvs__map_close(&m);
    assert_int_equal(unlink(path), 0);
}

static void test_refused(void **state)
{
    (void)state;
    char path[32];
    kvs__map m = {NULL, 9, {0}};
    kvs_err err = {0};
    assert_int_equal(kvs__map_open("/nonexistent/file", &m, &err), KVS_E_NOTFOUND);
    assert_non_null(strstr(err.msg, "'/nonexistent/file'"));
    assert_int_not_equal(err.sys_errno, 0);
    assert_int_equal(kvs__map_open("/", &m, &err), KVS_E_IO);
    assert_non_null(strstr(err.msg, "'/' is not a regular file"));
    make_file(path, "", 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not hang for want of a writer */
    assert_int_equal(kvs__map_open(path, &m, &err), KVS_E_IO);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(m.bytes, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
