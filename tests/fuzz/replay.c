/* SPDX-License-Identifier: MIT */
/* replay.c: runs a fuzz target once over every file named, and over every file of a folder named.
 * This is how the corpus is tested without libFuzzer; no input at all is a failure. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path, size_t bytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(bytes ? bytes : 1); /* of the exact size, so that ASan sees an overrun */
    int ok = f && data && fread(data, 1, bytes, f) == bytes;
    if (ok) {
        (void)LLVMFuzzerTestOneInput(data, bytes);
    } else {
        (void)fprintf(stderr, "cannot read %s\n", path);
    }
    free(data);
    if (f) {
        (void)fclose(f);
    }
    return ok ? 1 : -1;
}

/* Inputs run, or -1. */
static int replay(const char *path)
{
    struct stat sb;
    if (stat(path, &sb) != 0) {
        perror(path);
        return -1;
    }
    if (!S_ISDIR(sb.st_mode)) {
        return replay_file(path, (size_t)sb.st_size);
    }
    DIR *dir = opendir(path);
    int n = 0;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e && n >= 0; e = readdir(dir)) {
        char name[4096];
        int len = snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (e->d_name[0] == '.' || len < 0 || (size_t)len >= sizeof name) {
            continue;
        }
        int one = replay(name);
        n = one < 0 ? -1 : n + one;
    }
    if (dir) {
        (void)closedir(dir);
    }
    return n;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        int one = replay(argv[i]);
        if (one < 0) {
            return 1;
        }
        n += one;
    }
    printf("%d inputs\n", n);
    return n > 0 ? 0 : 1;
}
