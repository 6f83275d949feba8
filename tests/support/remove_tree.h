/* SPDX-License-Identifier: MIT */
/* remove_tree.h: takes a test's directory away with all that is in it. */
#ifndef KVS_TESTS_SUPPORT_REMOVE_TREE_H
#define KVS_TESTS_SUPPORT_REMOVE_TREE_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static inline void remove_tree(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        char name[700];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            continue;
        }
        int len = snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (len > 0 && (size_t)len < sizeof name && unlink(name) != 0) {
            remove_tree(name);
        }
    }
    if (d) {
        (void)closedir(d);
    }
    (void)rmdir(path);
}

#endif
