/* SPDX-License-Identifier: MIT */
/* json_number.c: length, integer and double of a JSON number. Integers keep all 64 bits; doubles
 * take the exact way (a 53-bit integer times or over a power of ten that is a double) wherever
 * people write numbers by hand, and long double beyond. */
#include "engine/json_number.h"

#include <math.h>

static size_t digits(const char *s, size_t n, size_t i)
{
    while (i < n && s[i] >= '0' && s[i] <= '9') {
        i++;
    }
    return i;
}

size_t kvs__json_number_len(const char *s, size_t n)
{
    size_t i = n > 0 && s[0] == '-' ? 1 : 0;
    size_t end = digits(s, n, i);
    if (end == i || (s[i] == '0' && end > i + 1)) {
        return 0;
    }
    i = end;
    if (i < n && s[i] == '.') {
        end = digits(s, n, i + 1);
        if (end == i + 1) {
            return 0;
        }
        i = end;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
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

/* value = (negative ? -1 : 1) * mantissa * 10^exponent; `lost`: digits beyond 19 were dropped. */
typedef struct decimal {
    uint64_t mantissa;
    int64_t exponent;
    bool negative;
    bool lost;
} decimal;

#define EXPONENT_MOST 100000 /* far outside of double, and no overflow when added to a length */

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
    decimal d = {0, 0, n > 0 && s[0] == '-', false};
    bool fraction = false;
    size_t i = d.negative ? 1 : 0;
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
        int64_t e = 0;
        for (; i < n; i++) {
            e = e < EXPONENT_MOST ? e * 10 + (s[i] - '0') : e;
        }
        d.exponent += minus ? -e : e;
    }
    return d;
}

bool kvs__json_number_int(const char *s, size_t n, int64_t *out)
{
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
    for (; d.exponent > 0; d.exponent--) {
        if (d.mantissa > (uint64_t)INT64_MAX / 10) {
            return false;
        }
        d.mantissa *= 10;
    }
    if (d.exponent < 0 || d.mantissa > (uint64_t)INT64_MAX) {
        return false;
    }
    *out = d.negative ? -(int64_t)d.mantissa : (int64_t)d.mantissa;
    return true;
}

double kvs__json_number_double(const char *s, size_t n)
{
    static const double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    decimal d = split(s, n);
    double v = (double)d.mantissa;
    if (d.mantissa < UINT64_C(1) << 53 && d.exponent >= -22 && d.exponent <= 22) {
        v = d.exponent < 0 ? v / power[-d.exponent] : v * power[d.exponent];
    } else if (d.mantissa != 0) {
        int e = d.exponent > 5000 ? 5000 : d.exponent < -5000 ? -5000 : (int)d.exponent;
        v = (double)((long double)d.mantissa * powl(10.0L, (long double)e));
    }
    return d.negative ? -v : v;
}
