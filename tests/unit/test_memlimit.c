/* SPDX-License-Identifier: MIT */
/* test_memlimit: limits of control groups, in a file system of the test's own. */
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

#include "base/memlimit.h"
#include "kvstate/base.h"

static char root[] = "/tmp/kvs_memlimit_XXXXXX";

static void put(const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s%s", root, name);
    for (char *p = path + strlen(root) + 1; *p; p++) {
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(path, 0700);
            *p = '/';
        }
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void limits(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(root));
    uint64_t machine = kvs__memory_limit(root); /* no groups at all */
    assert_true(machine > 0);
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_true(kvs__memory_limit(root) == machine);
    put("/sys/fs/cgroup/a/memory.max", "5000\n"); /* of a group above it */
    assert_true(kvs__memory_limit(root) == 5000);
    put("/sys/fs/cgroup/a/b/memory.max", "4000\n");
    assert_true(kvs__memory_limit(root) == 4000);
    put("/sys/fs/cgroup/memory.max", "3000\n"); /* the root of a namespace */
    assert_true(kvs__memory_limit(root) == 3000);
    put("/sys/fs/cgroup/memory.max", "garbage\n");
    assert_true(kvs__memory_limit(root) == 4000);
    put("/proc/self/cgroup", "5:cpu:/x\n4:memory:/m\nnonsense\n");
    put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "2000\n");
    assert_true(kvs__memory_limit(root) == 2000);
    put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    assert_true(kvs__memory_limit(root) == machine);
    assert_true(kvs_memory_limit() > 0 && kvs_memory_limit() <= machine);
    char command[600];
    (void)snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
