/* SPDX-License-Identifier: MIT */
/* cmd_cache_dump.c: kvstate cache dump: a second reader of saved state, written from docs/format.md and
 * sharing no line with the library, so that the two witness for each other. It checks every sum and
 * digest that the document names, and prints what it finds; it never writes. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#include <xxhash.h>

#include "commands.h"
#include "util.h"

/* ---- bytes */

typedef struct blob {
    unsigned char *p;
    size_t n;
} blob;

static unsigned long long num(const unsigned char *p, int bytes)
{
    unsigned long long x = 0;
    while (bytes-- > 0) {
        x = x << 8 | p[bytes];
    }
    return x;
}

static int load(const char *path, blob *out)
{
    FILE *f = fopen(path, "rb");
    struct stat sb;
    if (!f || fstat(fileno(f), &sb) != 0 || !S_ISREG(sb.st_mode)) {
        int code = fail(EXIT_INPUT, "%s: %s", path, f ? "not a regular file" : strerror(errno));
        if (f) {
            (void)fclose(f);
        }
        return code;
    }
    out->n = (size_t)sb.st_size;
    out->p = malloc(out->n + 1);
    bool ok = out->p && fread(out->p, 1, out->n, f) == out->n;
    (void)fclose(f);
    if (!ok) {
        free(out->p);
        out->p = NULL;
        return fail(EXIT_INPUT, "%s: cannot be read", path);
    }
    return 0;
}

/* SHA-256 of one buffer. */
static unsigned ror(unsigned x, int n)
{
    return (x >> n | x << (32 - n)) & 0xffffffffu;
}

static void sha_block(unsigned h[8], const unsigned char *p)
{
    static const unsigned primes[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    unsigned w[64];
    unsigned v[8];
    memcpy(v, h, sizeof v);
    for (int t = 0; t < 64; t++) {
        if (t < 16) {
            w[t] = (unsigned)p[4 * t] << 24 | (unsigned)p[4 * t + 1] << 16 |
                   (unsigned)p[4 * t + 2] << 8 | p[4 * t + 3];
        } else {
            unsigned a = w[t - 15];
            unsigned b = w[t - 2];
            w[t] = w[t - 16] + w[t - 7] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) +
                   (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
        }
        unsigned one = v[7] + (ror(v[4], 6) ^ ror(v[4], 11) ^ ror(v[4], 25)) +
                       ((v[4] & v[5]) ^ (~v[4] & v[6])) + primes[t] + w[t];
        unsigned two = (ror(v[0], 2) ^ ror(v[0], 13) ^ ror(v[0], 22)) +
                       ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        for (int i = 7; i > 0; i--) {
            v[i] = v[i - 1];
        }
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) {
        h[i] += v[i];
    }
}

static void sha(const unsigned char *p, size_t n, unsigned char out[32])
{
    unsigned h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char last[128] = {0};
    size_t full = n / 64;
    size_t rest = n % 64;
    for (size_t i = 0; i < full; i++) {
        sha_block(h, p + 64 * i);
    }
    memcpy(last, p + 64 * full, rest);
    last[rest] = 0x80;
    size_t end = rest < 56 ? 64 : 128;
    for (size_t i = 0; i < 8; i++) {
        last[end - 1 - i] = (unsigned char)((unsigned long long)n * 8 >> (8 * i));
    }
    for (size_t i = 0; i < end; i += 64) {
        sha_block(h, last + i);
    }
    for (size_t i = 0; i < 32; i++) {
        out[i] = (unsigned char)(h[i / 4] >> (24 - 8 * (i % 4)));
    }
}

static bool sha_is(const unsigned char *p, size_t n, const unsigned char want[32])
{
    unsigned char got[32];
    sha(p, n, got);
    return memcmp(got, want, 32) == 0;
}

static void print_hex(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        (void)printf("%02x", p[i]);
    }
}

/* ---- what the directory holds */

typedef struct block {
    unsigned char sha[32];
    unsigned long long bytes;
} block;

typedef struct dump {
    block *blocks; /* good ones of the segments read so far */
    size_t n_blocks;
    size_t cap;
    unsigned long long bad;
    bool have_segments; /* missing blocks are told only then */
} dump;

static void complain(dump *d, const char *what)
{
    (void)printf("  DAMAGED: %s\n", what);
    d->bad++;
}

static bool zero(const unsigned char *p, size_t n)
{
    while (n > 0 && p[n - 1] == 0) {
        n--;
    }
    return n == 0;
}

static void remember(dump *d, const unsigned char *rec, unsigned long long bytes)
{
    if (d->n_blocks == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 256;
        block *p = realloc(d->blocks, cap * sizeof *p);
        if (!p) {
            return; /* it will be reported as missing: loud enough */
        }
        d->blocks = p;
        d->cap = cap;
    }
    memcpy(d->blocks[d->n_blocks].sha, rec, 32);
    d->blocks[d->n_blocks++].bytes = bytes;
}

static bool known(const dump *d, const unsigned char *digest, unsigned long long bytes)
{
    for (size_t i = 0; i < d->n_blocks; i++) {
        if (d->blocks[i].bytes == bytes && memcmp(d->blocks[i].sha, digest, 32) == 0) {
            return true;
        }
    }
    return false;
}

static void dump_blocks(dump *d, const unsigned char *p, unsigned long long table, unsigned n)
{
    unsigned long long at = 128;
    for (unsigned i = 0; i < n; i++) {
        const unsigned char *r = p + table + 56ull * i;
        unsigned long long off = num(r + 32, 8);
        unsigned long long bytes = num(r + 40, 8);
        if (off != at || bytes == 0 || bytes > table - off) {
            complain(d, "the blocks do not follow one another");
            return;
        }
        (void)printf("  block ");
        print_hex(r, 8);
        (void)printf(" at %llu, %llu bytes\n", off, bytes);
        if (num(r + 48, 8) != XXH3_64bits(p + off, (size_t)bytes)) {
            complain(d, "XXH3 of the block");
        } else if (!sha_is(p + off, (size_t)bytes, r)) {
            complain(d, "SHA-256 of the block");
        } else {
            remember(d, r, bytes);
        }
        at += bytes;
    }
    if (at != table) {
        complain(d, "there is something between the blocks and the table");
    }
}

static void dump_segment(dump *d, const unsigned char *p, size_t n)
{
    if (n < 128 || !sha_is(p, 96, p + 96)) {
        complain(d, "header of the segment");
        return;
    }
    unsigned long long table = num(p + 40, 8);
    unsigned blocks = (unsigned)num(p + 32, 4);
    (void)printf("  segment %llu of format %llu, %u blocks, %llu bytes\n", num(p + 24, 8),
                 num(p + 8, 4), blocks, num(p + 16, 8));
    if (num(p + 8, 4) != 1) {
        (void)printf("  another format: left alone\n");
        return;
    }
    if (num(p + 12, 4) != 128 || num(p + 16, 8) != n || table < 128 || table > n ||
        n - table != 56ull * blocks || !zero(p + 36, 4) || !zero(p + 88, 8)) {
        complain(d, "lengths of the segment");
    } else if (!sha_is(p + table, n - (size_t)table, p + 56)) {
        complain(d, "table of the segment");
    } else {
        dump_blocks(d, p, table, blocks);
    }
}

/* The digest that names an entry: fields with their lengths, ids with their number. */
static bool key_is(const unsigned char *identity, const unsigned char *ns, size_t ns_bytes,
                   const unsigned char *ids, size_t n_ids, const unsigned char *want)
{
    static const char tag[] = "kvstate-key-1";
    size_t cap = 8 + 13 + 8 + 32 + 8 + ns_bytes + 8 + 4 * n_ids;
    unsigned char *buf = calloc(cap, 1);
    const struct {
        const void *p;
        size_t n;
        size_t count;
    } fields[] = {
        {tag, 13, 13}, {identity, 32, 32}, {ns, ns_bytes, ns_bytes}, {ids, 4 * n_ids, n_ids}};
    size_t at = 0;
    for (size_t i = 0; buf && i < 4; i++) {
        for (size_t k = 0; k < 8; k++) {
            buf[at++] = (unsigned char)((unsigned long long)fields[i].count >> (8 * k));
        }
        memcpy(buf + at, fields[i].p, fields[i].n);
        at += fields[i].n;
    }
    bool ok = buf && sha_is(buf, cap, want);
    free(buf);
    return ok;
}

static void dump_parts(dump *d, const unsigned char *part, unsigned n_parts,
                       const unsigned char *chunk, unsigned n_chunks)
{
    unsigned used = 0;
    unsigned long long missing = 0;
    for (unsigned i = 0; i < n_parts; i++, part += 48) {
        unsigned long long bytes = num(part + 24, 8);
        unsigned each = (unsigned)num(part + 32, 4);
        unsigned n = (unsigned)num(part + 36, 4);
        (void)printf("  part %-15.15s kind %llu layer %d, %llu bytes in %u blocks\n",
                     (const char *)part, num(part + 16, 4), (int)num(part + 20, 4), bytes, n);
        if (each == 0 || n != bytes / each + (bytes % each != 0) || n > n_chunks - used ||
            !zero(part + 40, 8)) {
            complain(d, "sizes of the part");
            return;
        }
        for (unsigned k = 0; k < n; k++, chunk += 32, used++) {
            unsigned long long left = bytes - (unsigned long long)k * each;
            missing += !known(d, chunk, left < each ? left : each);
        }
    }
    if (used != n_chunks) {
        complain(d, "number of blocks");
    }
    if (missing > 0 && d->have_segments) {
        (void)printf("  %llu blocks are in no good segment\n", missing);
        d->bad++;
    }
}

static void dump_entry(dump *d, const unsigned char *p, size_t n)
{
    if (n < 256 || !sha_is(p, 224, p + 224)) {
        complain(d, "header of the entry");
        return;
    }
    unsigned ns = (unsigned)num(p + 56, 4);
    unsigned ids = (unsigned)num(p + 60, 4);
    unsigned parts = (unsigned)num(p + 64, 4);
    unsigned chunks = (unsigned)num(p + 68, 4);
    if (num(p + 8, 4) != 1) {
        (void)printf("  another format: left alone\n");
        return;
    }
    (void)printf("  entry ");
    print_hex(p + 112, 32);
    (void)printf("\n  identity ");
    print_hex(p + 24, 32);
    (void)printf("\n  kind %llu flags %llu priority %d cost %llu, saved %llu ms after 1970\n",
                 num(p + 96, 4), num(p + 100, 4), (int)num(p + 104, 4), num(p + 88, 8),
                 num(p + 80, 8));
    (void)printf("  %u tokens, %llu bytes in %u parts\n", ids, num(p + 72, 8), parts);
    unsigned long long ns_padded = (ns + 3ull) / 4 * 4;
    if (num(p + 12, 4) != 256 || num(p + 16, 8) != n ||
        256 + ns_padded + 4ull * ids + 48ull * parts + 32ull * chunks != n || !zero(p + 108, 4) ||
        !zero(p + 176, 48)) {
        complain(d, "lengths of the entry");
        return;
    }
    if (!sha_is(p + 256, n - 256, p + 144)) {
        complain(d, "body of the entry");
        return;
    }
    const unsigned char *at = p + 256 + ns_padded;
    (void)printf("  ids");
    for (unsigned i = 0; i < ids && i < 8; i++) {
        (void)printf(" %d", (int)num(at + 4ull * i, 4));
    }
    (void)puts(ids > 8 ? " ..." : "");
    if (!key_is(p + 24, p + 256, ns, at, ids, p + 112)) {
        complain(d, "key of the entry");
    }
    const unsigned char *part = at + 4ull * ids;
    dump_parts(d, part, parts, part + 48ull * parts, chunks);
}

static void dump_export(dump *d, const unsigned char *p, size_t n)
{
    if (n < 96 || !sha_is(p, 64, p + 64) || num(p + 16, 8) != n) {
        complain(d, "header of the export");
        return;
    }
    unsigned long long entry = num(p + 24, 8);
    unsigned long long segment = num(p + 32, 8);
    if (entry > n - 96 || segment != n - 96 - entry) {
        complain(d, "lengths of the export");
        return;
    }
    if (segment > 0) {
        dump_segment(d, p + 96 + entry, (size_t)segment);
    }
    d->have_segments = true;
    dump_entry(d, p + 96, (size_t)entry);
}

static int dump_file(dump *d, const char *path)
{
    blob b = {NULL, 0};
    int rc = load(path, &b);
    if (rc != 0 || !b.p) {
        return rc;
    }
    (void)printf("%s\n", path);
    if (b.n >= 8 && memcmp(b.p, "KVSBLOCK", 8) == 0) {
        dump_segment(d, b.p, b.n);
    } else if (b.n >= 8 && memcmp(b.p, "KVSENTRY", 8) == 0) {
        dump_entry(d, b.p, b.n);
    } else if (b.n >= 8 && memcmp(b.p, "KVSEXPRT", 8) == 0) {
        dump_export(d, b.p, b.n);
    } else {
        complain(d, "no file of saved state");
    }
    free(b.p);
    return 0;
}

static int dump_folder(dump *d, const char *dir, const char *sub, const char *end)
{
    char path[2048];
    (void)snprintf(path, sizeof path, "%s/%s", dir, sub);
    DIR *f = opendir(path);
    int rc = f ? 0 : fail(EXIT_INPUT, "%s: %s", path, strerror(errno));
    for (struct dirent *e = f ? readdir(f) : NULL; e && rc == 0; e = readdir(f)) {
        size_t n = strlen(e->d_name);
        if (n > 4 && strcmp(e->d_name + n - 4, end) == 0) {
            (void)snprintf(path, sizeof path, "%s/%s/%s", dir, sub, e->d_name);
            rc = dump_file(d, path);
        }
    }
    if (f) {
        (void)closedir(f);
    }
    return rc;
}

int cmd_cache_dump(const settings *s, const char *path)
{
    dump d = {NULL, 0, 0, 0, false};
    struct stat sb;
    int rc = 0;
    if (s->json) {
        return fail(EXIT_USAGE, "cache dump prints text only");
    }
    if (stat(path, &sb) != 0) {
        return fail(EXIT_INPUT, "%s: %s", path, strerror(errno));
    }
    if (S_ISDIR(sb.st_mode)) {
        rc = dump_folder(&d, path, "blocks", ".kvb");
        d.have_segments = true;
        rc = rc ? rc : dump_folder(&d, path, "entries", ".kve");
    } else {
        rc = dump_file(&d, path);
    }
    free(d.blocks);
    if (rc == 0 && d.bad > 0) {
        rc = fail(EXIT_INPUT, "%s: %llu things are damaged", path, d.bad);
    }
    return rc;
}
