/* SPDX-License-Identifier: MIT */
/* kvgold.h: reads the container of recorded vectors (README.md has the format) and makes the inputs
 * that are not stored. Header-only so that a reader is one include away; needs the C library alone.
 *
 * A record is found by name and its checksum verified before anything of it is used, so a truncated
 * or edited file cannot pass for data. Little-endian hosts only. */
#ifndef KVS_TESTS_GOLDEN_KVGOLD_H
#define KVS_TESTS_GOLDEN_KVGOLD_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum gold_type { GOLD_F32, GOLD_F16, GOLD_BF16, GOLD_U32, GOLD_U8 };

typedef struct gold_record {
    char name[40];
    uint32_t type;
    uint32_t dims[3]; /* row-major; 1 where there are fewer */
    uint32_t crc;     /* CRC-32 (zlib's polynomial) of the data */
    uint32_t zero;
} gold_record;

typedef struct gold_file {
    unsigned char *data;
    size_t bytes;
} gold_file;

static inline uint32_t gold_crc(uint32_t crc, const void *data, size_t n)
{
    static const uint32_t t[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac,
                                   0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                   0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                   0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    const unsigned char *p = (const unsigned char *)data;
    crc = ~crc;
    for (size_t i = 0; i < n; i++) { /* four bits at a time */
        crc = (crc >> 4) ^ t[(crc ^ p[i]) & 15u];
        crc = (crc >> 4) ^ t[(crc ^ ((uint32_t)p[i] >> 4)) & 15u];
    }
    return ~crc;
}

static inline void gold_die(const char *what, const char *name)
{
    fprintf(stderr, "golden data: %s: %s\n", what, name);
    exit(1);
}

/* The whole file with a NUL behind it, or the end of the program. */
static inline gold_file gold_read(const char *path)
{
    gold_file f = {NULL, 0};
    FILE *in = fopen(path, "rb");
    if (in == NULL || fseek(in, 0, SEEK_END) != 0) {
        gold_die("cannot open", path);
    }
    long n = ftell(in);
    rewind(in);
    f.bytes = n > 0 ? (size_t)n : 0;
    f.data = (unsigned char *)malloc(f.bytes + 1);
    if (f.data == NULL || fread(f.data, 1, f.bytes, in) != f.bytes) {
        gold_die("cannot read", path);
    }
    f.data[f.bytes] = 0;
    fclose(in);
    return f;
}

static inline size_t gold_elements(const gold_record *r)
{
    return (size_t)r->dims[0] * r->dims[1] * r->dims[2];
}

static inline size_t gold_bytes(const gold_record *r)
{
    static const size_t size[] = {4, 2, 2, 4, 1};
    return gold_elements(r) * size[r->type];
}

/* The data of record `name`, its header copied to *out; ends the program where there is none. */
static inline const void *gold_find(const gold_file *f, const char *name, gold_record *out)
{
    if (f->bytes < 8 || memcmp(f->data, "kvsgold1", 8) != 0) {
        gold_die("not a container, looking for", name);
    }
    for (size_t at = 8; at + sizeof *out <= f->bytes;) {
        memcpy(out, f->data + at, sizeof *out);
        at += sizeof *out;
        if (out->type > GOLD_U8 || gold_bytes(out) > f->bytes - at) {
            gold_die("damaged before", name);
        }
        if (strncmp(out->name, name, sizeof out->name) == 0) {
            if (gold_crc(0, f->data + at, gold_bytes(out)) != out->crc) {
                gold_die("wrong checksum", name);
            }
            return f->data + at;
        }
        at += (gold_bytes(out) + 7) / 8 * 8;
    }
    gold_die("no record", name);
    return NULL;
}

/* Value i of the stream of `seed`: ((z >> 40) - 2^23) * 2^(-22 - (z & 7)), z splitmix64's. */
static inline float gold_value(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return ldexpf((float)((int32_t)(z >> 40) - (1 << 23)), -22 - (int)(z & 7));
}

/* Value of `key` in a line of "key=value" words separated by blanks, copied to dst; 0 if absent. */
static inline int gold_field(const char *line, const char *key, char *dst, size_t n)
{
    size_t len = strlen(key);
    for (const char *p = line; *p != 0 && *p != '\n';) {
        const char *end = p + strcspn(p, " \n");
        if ((size_t)(end - p) > len && memcmp(p, key, len) == 0 && p[len] == '=') {
            size_t got = (size_t)(end - p) - len - 1;
            if (got >= n) {
                gold_die("field too long", key);
            }
            memcpy(dst, p + len + 1, got);
            dst[got] = 0;
            return 1;
        }
        p = end + strspn(end, " ");
    }
    return 0;
}

/* The same as a number; ends the program where it is absent. */
static inline int64_t gold_number(const char *line, const char *key)
{
    char text[32];
    if (!gold_field(line, key, text, sizeof text)) {
        gold_die("no field", key);
    }
    return strtoll(text, NULL, 10);
}

#endif
