/* SPDX-License-Identifier: MIT */
/* json_number.c: length, integer and double of a decimal number. Integers keep all 64 bits.
 *
 * A double is found in the first of three ways that can decide it: 53-bit integers times or over a
 * power of ten that is a double itself (numbers written by hand); a 64-bit product with a bound of
 * its error, where that does not reach the middle between two doubles; else both sides of that
 * middle as integers of up to BIG_LIMBS limbs, compared exactly. */
#include "engine/json_number.h"

#include <math.h>
#include <string.h>

#include "base/base.h"

__extension__ typedef unsigned __int128 u128;

static size_t digits(const char *s, size_t n, size_t i)
{
    while (i < n && s[i] >= '0' && s[i] <= '9') {
        i++;
    }
    return i;
}

size_t kvs__json_number_len(const char *s, size_t n, bool *whole)
{
    size_t i = n > 0 && s[0] == '-' ? 1 : 0;
    size_t end = digits(s, n, i);
    *whole = true;
    if (end == i || (s[i] == '0' && end > i + 1)) {
        return 0;
    }
    i = end;
    if (i < n && s[i] == '.') {
        *whole = false;
        end = digits(s, n, i + 1);
        if (end == i + 1) {
            return 0;
        }
        i = end;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        *whole = false;
        size_t from = i + 1;
        from += from < n && (s[from] == '+' || s[from] == '-') ? 1 : 0;
        end = digits(s, n, from);
        if (end == from) {
            return 0;
        }
        i = end;
    }
    return i;
}

/* value = (negative ? -1 : 1) * mantissa * 10^exponent, but for the digits dropped. */
typedef struct decimal {
    uint64_t mantissa;
    int64_t exponent;
    int64_t power; /* as written after the e */
    bool negative;
    bool lost; /* digits beyond 19 or 20 that are not all 0 were dropped */
} decimal;

#define EXPONENT_MOST INT64_C(100000000000) /* beyond the digits of any text */

static void add_digit(decimal *d, char c, bool fraction)
{
    if (d->mantissa > (UINT64_MAX - 9) / 10) {
        d->lost = d->lost || c != '0';
        d->exponent += fraction ? 0 : 1;
        return;
    }
    d->mantissa = d->mantissa * 10 + (uint64_t)(c - '0');
    d->exponent -= fraction ? 1 : 0;
}

static decimal split(const char *s, size_t n)
{
    decimal d = {.negative = n > 0 && s[0] == '-'};
    bool fraction = false;
    size_t i = n > 0 && (s[0] == '-' || s[0] == '+') ? 1 : 0;
    for (; i < n && s[i] != 'e' && s[i] != 'E'; i++) {
        if (s[i] == '.') {
            fraction = true;
        } else {
            add_digit(&d, s[i], fraction);
        }
    }
    if (i < n) {
        i++;
        bool minus = i < n && s[i] == '-';
        i += i < n && (s[i] == '-' || s[i] == '+') ? 1 : 0;
        for (; i < n; i++) {
            d.power = d.power < EXPONENT_MOST ? d.power * 10 + (s[i] - '0') : d.power;
        }
        d.power = minus ? -d.power : d.power;
        d.exponent += d.power;
    }
    return d;
}

bool kvs__json_number_int(const char *s, size_t n, int64_t *out)
{
    if (n <= 18 && digits(s, n, 0) == n) { /* the ids of a vocabulary */
        *out = 0;
        for (size_t i = 0; i < n; i++) {
            *out = *out * 10 + (s[i] - '0');
        }
        return true;
    }
    decimal d = split(s, n);
    if (d.lost) {
        return false;
    }
    if (d.mantissa == 0) {
        *out = 0;
        return true;
    }
    for (; d.exponent < 0 && d.mantissa % 10 == 0; d.exponent++) {
        d.mantissa /= 10;
    }
    const uint64_t most = (uint64_t)INT64_MAX + (d.negative ? 1 : 0);
    for (; d.exponent > 0; d.exponent--) {
        if (d.mantissa > most / 10) {
            return false;
        }
        d.mantissa *= 10;
    }
    if (d.exponent < 0 || d.mantissa > most) {
        return false;
    }
    *out = d.negative ? -(int64_t)(d.mantissa - 1) - 1 : (int64_t)d.mantissa;
    return true;
}

/* ---- integers without bound */

/* The longest: 771 digits times 2^1075, or 54 bits times 10^1095; both below 3700 bits. */
#define BIG_LIMBS  120u
#define BIG_DIGITS 770u /* no middle between two doubles has more that are not 0 */

typedef struct big {
    size_t n; /* limbs in use; the last is not 0 */
    uint32_t limb[BIG_LIMBS];
} big;

/* b = b * factor + term */
static void big_mul(big *b, uint32_t factor, uint32_t term)
{
    uint64_t carry = term;
    for (size_t i = 0; i < b->n; i++) {
        carry += (uint64_t)b->limb[i] * factor;
        b->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry != 0 && !KVS_NEVER(b->n == BIG_LIMBS)) {
        b->limb[b->n++] = (uint32_t)carry;
    }
}

static void big_ten(big *b, int64_t power)
{
    for (; power >= 9; power -= 9) {
        big_mul(b, 1000000000u, 0);
    }
    for (; power > 0; power--) {
        big_mul(b, 10, 0);
    }
}

static void big_shift(big *b, int64_t bits)
{
    for (; bits >= 31; bits -= 31) {
        big_mul(b, UINT32_C(1) << 31, 0);
    }
    big_mul(b, UINT32_C(1) << (bits > 0 ? bits : 0), 0);
}

static int big_compare(const big *a, const big *b)
{
    if (a->n != b->n) {
        return a->n < b->n ? -1 : 1;
    }
    for (size_t i = a->n; i-- > 0;) {
        if (a->limb[i] != b->limb[i]) {
            return a->limb[i] < b->limb[i] ? -1 : 1;
        }
    }
    return 0;
}

/* All digits of s as an integer; *exponent becomes what goes with them. Beyond BIG_DIGITS a 1
 * stands for whatever follows. */
static void big_digits(big *b, const char *s, size_t n, int64_t *exponent)
{
    size_t used = 0;
    bool fraction = false;
    bool more = false;
    for (size_t i = 0; i < n && s[i] != 'e' && s[i] != 'E'; i++) {
        if (s[i] == '.') {
            fraction = true;
        }
        if (s[i] < '0' || s[i] > '9') {
            continue;
        }
        if (used == BIG_DIGITS) {
            more = more || s[i] != '0';
            *exponent += fraction ? 0 : 1;
            continue;
        }
        big_mul(b, 10, (uint32_t)(s[i] - '0'));
        used += b->n > 0 ? 1 : 0; /* zeros in front cost nothing */
        *exponent -= fraction ? 1 : 0;
    }
    if (more) {
        big_mul(b, 10, 1);
        --*exponent;
    }
}

/* The sign of (digits of s) * 10^power - middle * 2^shift. */
static int compare(const char *s, size_t n, int64_t power, uint64_t middle, int64_t shift)
{
    big a = {.n = 0};
    big b = {.n = 0};
    big_digits(&a, s, n, &power);
    big_mul(&b, 0, (uint32_t)(middle >> 32));
    big_shift(&b, 32);
    big_mul(&b, 1, (uint32_t)middle);
    big_ten(power > 0 ? &a : &b, power > 0 ? power : -power);
    big_shift(shift > 0 ? &b : &a, shift > 0 ? shift : -shift);
    return big_compare(&a, &b);
}

/* ---- doubles */

/* value = top * 2^shift within `error` units of top, whose highest bit is set. */
typedef struct scaled {
    uint64_t top;
    int64_t shift;
    uint64_t error;
} scaled;

static scaled scale(const decimal *d)
{
    scaled v = {d->mantissa, 0, d->lost ? 16 : 0}; /* what was dropped is below 2^-60 of it */
    int64_t e = d->exponent;
    for (;;) {
        while (v.top >> 63 == 0) {
            v.top <<= 1;
            v.shift--;
        }
        if (e == 0) {
            return v;
        }
        if (e > 0) {
            u128 p = (u128)v.top * 10; /* 67 or 68 bits */
            int less = p >> 67 != 0 ? 4 : 3;
            v.top = (uint64_t)(p >> less);
            v.shift += less;
            e--;
        } else {
            u128 p = (u128)v.top * UINT64_C(0xcccccccccccccccd); /* 2^67 / 10, rounded up */
            int more = p >> 127 != 0 ? 64 : 63;
            v.top = (uint64_t)(p >> more);
            v.shift += more - 67;
            e++;
        }
        v.error += 3; /* each step is off by less than 1.25 * 2^-63 of the value */
    }
}

/* m * 2^shift for m <= 2^53, which is a double or infinite. */
static double assemble(uint64_t m, int64_t shift)
{
    return shift > 971 ? (double)INFINITY : ldexp((double)m, (int)shift);
}

static double nearest(const char *s, size_t n, const decimal *d)
{
    scaled v = scale(d);
    int64_t drop = 11; /* of 64 bits 53 stay, fewer in subnormal numbers */
    if (v.shift + drop < -1074) {
        drop = -1074 - v.shift;
    }
    if (drop > 65) {
        return 0.0;
    }
    uint64_t low = drop < 64 ? v.top >> drop : 0;
    u128 half = (u128)1 << (drop - 1);
    u128 rest = v.top & ((half << 1) - 1);
    u128 away = rest > half ? rest - half : half - rest;
    int side = rest > half ? 1 : -1;
    if (away <= v.error) {
        side = compare(s, n, d->power, 2 * low + 1, v.shift + drop - 1);
    }
    if (side > 0 || (side == 0 && (low & 1) != 0)) {
        low++;
    }
    return assemble(low, v.shift + drop);
}

#define POWERS 23

static const double power_of_ten[POWERS] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                            1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                            1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static double from_decimal(const char *s, size_t n, const decimal *d)
{
    double v = (double)d->mantissa;
    if (d->mantissa < UINT64_C(1) << 53 && d->exponent > -POWERS && d->exponent < POWERS) {
        v = d->exponent < 0 ? v / power_of_ten[-d->exponent] : v * power_of_ten[d->exponent];
    } else if (d->mantissa != 0) {
        /* A mantissa has 1 to 20 digits; 1e309 is infinite, 1e-324 below half of the least. */
        v = d->exponent > 309 ? (double)INFINITY : d->exponent < -345 ? 0.0 : nearest(s, n, d);
    }
    return d->negative ? -v : v;
}

double kvs__json_number_double(const char *s, size_t n)
{
    const decimal d = split(s, n);
    return from_decimal(s, n, &d);
}

double kvs__json_number_rounded_twice(const char *s, size_t n)
{
    const decimal d = split(s, n);
    if (d.exponent <= -POWERS || d.exponent >= POWERS) {
        return from_decimal(s, n, &d);
    }
    const double m = (double)d.mantissa;
    const double v = d.exponent < 0 ? m / power_of_ten[-d.exponent] : m * power_of_ten[d.exponent];
    return d.negative ? -v : v;
}
