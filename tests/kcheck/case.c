/* SPDX-License-Identifier: MIT */
/* case.c: one case of one kernel: fenced buffers, the two calls, the comparison.
 *
 * Every buffer ends at an unreadable page, so that reading one byte too far faults; it is tried
 * once more one element earlier, so that a kernel that wants more than the alignment of an element
 * faults too. The bytes around it hold a canary. Inputs must not change; outputs are compared as a
 * whole, so a write into a gap between rows shows. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#endif
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kcheck.h"

enum {
    ROOM = 1 << 20, /* bytes of the largest buffer */
    CANARY = 128,
    CANARY_BYTE = 0xa5
};

char kc_case_name[256];

size_t kc_dtype_bytes(kvs_dtype t)
{
    return t == KVS_F32 ? 4 : 2;
}

const char *kc_dtype_name(kvs_dtype t)
{
    return t == KVS_F32 ? "f32" : t == KVS_F16 ? "f16" : "bf16";
}

/* The control and status register of floating point: rounding, flushing, exception masks. The
 * exception flags are left out: they are meant to accumulate. */
static uint64_t float_control(void)
{
#if defined(__x86_64__)
    uint32_t csr = 0;
    __asm__ __volatile__("stmxcsr %0" : "=m"(csr));
    return csr & ~0x3fu;
#elif defined(__aarch64__)
    uint64_t fpcr = 0;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
#else
    return 0;
#endif
}

bool kc_init(kc *t)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < KC_BUFS; i++) {
        size_t body = ROOM + page;
        uint8_t *map =
            mmap(NULL, body + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED || mprotect(map + body, page, PROT_NONE) != 0) {
            return false;
        }
        t->buf[i].fence = map + body;
        t->buf[i].start = malloc(ROOM);
        t->buf[i].want = malloc(ROOM);
        if (!t->buf[i].start || !t->buf[i].want) {
            return false;
        }
    }
    return true;
}

void kc_begin(kc *t)
{
    t->n_bufs = 0;
}

void *kc_buffer(kc *t, kc_compare compare, size_t elem, size_t n)
{
    if (t->n_bufs == KC_BUFS || n * elem > ROOM) {
        (void)fprintf(stderr, "kcheck: buffer %zu of %zu bytes: too many or too large\n", t->n_bufs,
                      n * elem);
        abort();
    }
    kc_buf *b = &t->buf[t->n_bufs++];
    b->bytes = n * elem;
    b->elem = elem;
    b->compare = compare;
    if (compare != KC_INPUT) {
        kc_fill_bytes(&t->rng, b->start, b->bytes);
    }
    return b->start;
}

static uint8_t *place(kc_buf *b, size_t shift)
{
    uint8_t *p = b->fence - shift - b->bytes;
    memset(p - CANARY, CANARY_BYTE, CANARY);
    memcpy(p, b->start, b->bytes);
    memset(p + b->bytes, CANARY_BYTE, shift);
    return p;
}

static bool canary_ok(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != CANARY_BYTE) {
            return false;
        }
    }
    return true;
}

static bool is_nan_f32(const uint8_t *p)
{
    uint32_t u = 0;
    memcpy(&u, p, sizeof u);
    return (u & 0x7fffffffu) > 0x7f800000u;
}

/* The first byte that differs, or bytes. */
static size_t differs_at(const kc_buf *b, const uint8_t *got)
{
    const uint8_t *want = b->compare == KC_INPUT ? b->start : b->want;
    if (memcmp(got, want, b->bytes) == 0) {
        return b->bytes;
    }
    for (size_t i = 0; i < b->bytes; i += b->elem) {
        bool same = memcmp(got + i, want + i, b->elem) == 0;
        if (!same && b->compare == KC_NAN_F32) {
            same = is_nan_f32(got + i) && is_nan_f32(want + i);
        }
        if (!same) {
            return i;
        }
    }
    return b->bytes;
}

static void complain(kc *t, const char *what, size_t buf, size_t at, const uint8_t *got)
{
    t->n_bad++;
    if (t->n_bad > 8) {
        return;
    }
    const kc_buf *b = &t->buf[buf];
    (void)printf("  BAD %s: %s, buffer %zu", kc_case_name, what, buf);
    if (got && b->elem == 4) {
        uint32_t g = 0;
        uint32_t w = 0;
        memcpy(&g, got + at, sizeof g);
        memcpy(&w, (b->compare == KC_INPUT ? b->start : b->want) + at, sizeof w);
        (void)printf(", element %zu of %zu: got %08x, want %08x", at / 4, b->bytes / 4, g, w);
    } else if (got && b->elem == 2) {
        uint16_t g = 0;
        uint16_t w = 0;
        memcpy(&g, got + at, sizeof g);
        memcpy(&w, (b->compare == KC_INPUT ? b->start : b->want) + at, sizeof w);
        (void)printf(", element %zu of %zu: got %04x, want %04x", at / 2, b->bytes / 2, (unsigned)g,
                     (unsigned)w);
    }
    (void)printf("\n");
}

static void check(kc *t, uint8_t *const *p, size_t shift_elems)
{
    for (size_t i = 0; i < t->n_bufs; i++) {
        const kc_buf *b = &t->buf[i];
        if (!canary_ok(p[i] - CANARY, CANARY)) {
            complain(t, "wrote before it", i, 0, NULL);
        }
        if (!canary_ok(p[i] + b->bytes, shift_elems * b->elem)) {
            complain(t, "wrote behind it", i, 0, NULL);
        }
        size_t at = differs_at(b, p[i]);
        if (at < b->bytes) {
            complain(t, b->compare == KC_INPUT ? "an input changed" : "differs", i, at, p[i]);
        }
    }
}

static void name_case(const kc *t, const kc_arg *a, const char *who, size_t shift)
{
    (void)snprintf(
        kc_case_name, sizeof kc_case_name,
        "%s/%s (%s, shift %zu): n %zu block %zu rows %zu dim %zu tiles %zu ld %zu,%zu,%zu "
        "bits %u group %u %s softcap %g data %d",
        t->tier, t->kernel, who, shift, a->n, a->block, a->rows, a->dim, a->tiles, a->ld0, a->ld1,
        a->ld2, a->bits, a->group, kc_dtype_name(a->dtype), (double)a->softcap, (int)a->data);
}

void kc_run(kc *t, kc_call call, const kc_arg *a)
{
    uint8_t *at[KC_BUFS] = {0};
    void *p[KC_BUFS] = {0};
    t->n_cases++;
    name_case(t, a, "reference", 0);
    for (size_t i = 0; i < t->n_bufs; i++) {
        p[i] = at[i] = place(&t->buf[i], 0);
        memcpy(t->buf[i].want, t->buf[i].start, t->buf[i].bytes);
    }
    call(t->ref, p, a);
    for (size_t i = 0; i < t->n_bufs; i++) {
        memcpy(t->buf[i].want, at[i], t->buf[i].bytes);
    }
    for (size_t shift = 0; shift < 2; shift++) {
        name_case(t, a, "tested", shift);
        for (size_t i = 0; i < t->n_bufs; i++) {
            p[i] = at[i] = place(&t->buf[i], shift * t->buf[i].elem);
        }
        uint64_t before = float_control();
        call(t->tested, p, a);
        if (float_control() != before) {
            complain(t, "float control register changed", 0, 0, NULL);
        }
        check(t, at, shift);
    }
}
