/* SPDX-License-Identifier: MIT */
/* gguf_names.c: names of keys and tensors: reading, checking, quoting, and the table by name.
 *
 * Names end up in messages and on terminals, so what is not UTF-8 or holds control characters is
 * refused. The table's hash only has to spread names under a seed that the file's author cannot
 * know; it is not stored anywhere and nothing depends on its order. */
#include <inttypes.h>
#include <string.h>

#include "engine/gguf_priv.h"

/* Decodes one character of at most n bytes; 0 when it is malformed (overlong forms, surrogates and
 * values above U+10FFFF included). Returns the bytes used. */
static size_t utf8_next(const uint8_t *p, size_t n, uint32_t *out)
{
    if (p[0] < 0x80) {
        *out = p[0];
        return 1;
    }
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n < len) {
        return 0;
    }
    uint32_t ch = p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
        ch = ch << 6 | (p[i] & 0x3fu);
    }
    if ((len == 3 && ch < 0x800) || (len == 4 && (ch < 0x10000 || ch > 0x10ffff)) ||
        (ch >= 0xd800 && ch <= 0xdfff)) {
        return 0;
    }
    *out = ch;
    return len;
}

static kvs_status check_text(const uint8_t *p, size_t len, const char *what, uint64_t i,
                             kvs_err *err)
{
    for (size_t at = 0; at < len;) {
        uint32_t ch = 0;
        size_t used = utf8_next(p + at, len - at, &ch);
        if (used == 0) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "name of %s %" PRIu64 " is not UTF-8 (byte 0x%02x at %zu)", what, i,
                             p[at], at);
        }
        if (ch < 0x20 || (ch >= 0x7f && ch < 0xa0)) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "name of %s %" PRIu64 " holds control character 0x%02" PRIx32
                             " at byte %zu",
                             what, i, ch, at);
        }
        at += used;
    }
    return KVS_OK;
}

kvs_status kvs__gguf_read_name(kvs__gguf_cursor *c, const char *what, uint64_t i, kvs__str *out,
                               kvs_err *err)
{
    uint64_t len = 0;
    size_t start = c->at;
    if (!kvs__gguf_take_u64(c, &len)) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "file ends before %s %" PRIu64 " (at byte %zu)", what, i, start);
    }
    if (len == 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "name of %s %" PRIu64 " is empty", what, i);
    }
    if (len > KVS__GGUF_NAME_MAX) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "name of %s %" PRIu64 " has length %" PRIu64 ", above %u", what, i, len,
                         KVS__GGUF_NAME_MAX);
    }
    const uint8_t *p = kvs__gguf_take(c, len);
    if (!p) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "file ends inside the name of %s %" PRIu64 " (%" PRIu64
                         " bytes from byte %zu)",
                         what, i, len, start + 8);
    }
    *out = (kvs__str){(const char *)p, (size_t)len};
    return check_text(p, (size_t)len, what, i, err);
}

kvs__gguf_quoted kvs__gguf_quote(kvs__str name)
{
    kvs__gguf_quoted q = {{0}};
    size_t n = name.len;
    if (n > 63) {
        n = 60;
        while (n > 0 && ((unsigned char)name.ptr[n] & 0xc0) == 0x80) {
            n--;
        }
    }
    memcpy(q.text, name.ptr, n);
    memcpy(q.text + n, "...", n < name.len ? 3 : 0);
    return q;
}

kvs_status kvs__gguf_ends(const kvs__gguf_cursor *c, const char *what, kvs__str name,
                          const char *part, kvs_err *err)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine", "file ends inside the %s of %s '%s' (%zu bytes)",
                     part, what, kvs__gguf_quote(name).text, c->size);
}

bool kvs__str_eq(kvs__str s, const char *text)
{
    size_t n = strlen(text);
    return s.len == n && (n == 0 || memcmp(s.ptr, text, n) == 0);
}

static uint64_t hash(uint64_t seed, const char *s, size_t len)
{
    uint64_t h = seed ^ (uint64_t)len * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t w = 0;
        memcpy(&w, s + i, len - i < 8 ? len - i : 8);
        h = (h ^ w) * 0xd6e8feb86659fd93u;
        h ^= h >> 32;
    }
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

static kvs__str name_of(const kvs__gguf_names *names, size_t i)
{
    kvs__str s;
    memcpy(&s, names->items + i * names->stride, sizeof s);
    return s;
}

/* The slot that holds the name, or the empty one where it belongs. */
static size_t slot_of(const kvs__gguf_names *names, const char *name, size_t len)
{
    size_t mask = names->n_slots - 1;
    size_t at = (size_t)hash(names->seed, name, len) & mask;
    while (names->slots[at] != 0) {
        kvs__str s = name_of(names, names->slots[at] - 1);
        if (s.len == len && memcmp(s.ptr, name, len) == 0) {
            break;
        }
        at = (at + 1) & mask;
    }
    return at;
}

size_t kvs__gguf_names_find(const kvs__gguf_names *names, const char *name, size_t len)
{
    if (names->n == 0) {
        return SIZE_MAX;
    }
    uint32_t found = names->slots[slot_of(names, name, len)];
    return found ? found - 1 : SIZE_MAX;
}

kvs_status kvs__gguf_names_build(kvs_ctx *ctx, kvs__gguf_names *names, const char *what,
                                 kvs_err *err)
{
    if (names->n == 0) {
        return KVS_OK;
    }
    if (names->n > UINT32_MAX / 4) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "%zu names of kind %s are too many", names->n,
                         what);
    }
    size_t n_slots = 16;
    while (n_slots < 2 * names->n) {
        n_slots *= 2;
    }
    names->slots = kvs__calloc(ctx, n_slots, sizeof *names->slots);
    if (!names->slots) {
        return kvs__nomem(err, "engine", n_slots * sizeof *names->slots);
    }
    names->n_slots = n_slots;
    names->seed = (uint64_t)(uintptr_t)names->slots * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < names->n; i++) {
        kvs__str s = name_of(names, i);
        size_t at = slot_of(names, s.ptr, s.len);
        if (names->slots[at] != 0) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "%s '%s' occurs twice, as number %u and %zu", what,
                             kvs__gguf_quote(s).text, names->slots[at] - 1, i);
        }
        names->slots[at] = (uint32_t)i + 1;
    }
    return KVS_OK;
}

void kvs__gguf_names_free(kvs_ctx *ctx, kvs__gguf_names *names)
{
    kvs__free(ctx, names->slots, names->n_slots * sizeof *names->slots);
    *names = (kvs__gguf_names){0};
}
