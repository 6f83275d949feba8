/* SPDX-License-Identifier: MIT */
/* memlimit.c: how much memory the process may use: the least of the machine's and of the limits of
 * its control groups, version 1 and 2, all the way up. A budget that ignores the container's limit is
 * one that the kernel enforces by killing the process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/memlimit.h"

#define PATH_BYTES 1024

/* The number in a file; UINT64_MAX where there is none ("max", no file, not a number). */
static uint64_t number_in(const char *path)
{
    char text[64];
    FILE *in = fopen(path, "re");
    if (!in) {
        return UINT64_MAX;
    }
    size_t n = fread(text, 1, sizeof text - 1, in);
    (void)fclose(in);
    text[n] = '\0';
    char *end = NULL;
    unsigned long long v = strtoull(text, &end, 10);
    return end == text || v == 0 || text[0] == '-' ? UINT64_MAX : v;
}

/* The least limit of a group and those above it; `group` is cut on the way. */
static uint64_t least_upwards(const char *root, const char *mount, const char *file, char *group)
{
    uint64_t least = UINT64_MAX;
    for (;;) {
        char path[3 * PATH_BYTES];
        int n = snprintf(path, sizeof path, "%s%s%s/%s", root, mount, group, file);
        uint64_t v = n > 0 && (size_t)n < sizeof path ? number_in(path) : UINT64_MAX;
        least = v < least ? v : least;
        char *slash = strrchr(group, '/');
        if (!slash) {
            return least;
        }
        *slash = '\0';
    }
}

/* One line "number:controllers:/group"; controllers are empty in version 2. */
static uint64_t of_line(const char *root, char *line)
{
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) {
        return UINT64_MAX;
    }
    *group++ = '\0';
    controllers++;
    group[strcspn(group, "\n")] = '\0';
    if (controllers[0] == '\0') {
        return least_upwards(root, "/sys/fs/cgroup", "memory.max", group);
    }
    if (strcmp(controllers, "memory") == 0) {
        return least_upwards(root, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", group);
    }
    return UINT64_MAX;
}

uint64_t kvs__memory_limit(const char *root)
{
    char path[2 * PATH_BYTES];
    char line[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    int n = snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *in = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    while (in && fgets(line, sizeof line, in)) {
        uint64_t v = of_line(root, line);
        least = v < least ? v : least;
    }
    if (in) {
        (void)fclose(in);
    }
    long pages = sysconf(_SC_PHYS_PAGES);
    long size = sysconf(_SC_PAGESIZE);
    uint64_t all = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
    return all > 0 && all < least ? all : (least == UINT64_MAX ? 0 : least);
}

uint64_t kvs_memory_limit(void)
{
    return kvs__memory_limit("");
}
