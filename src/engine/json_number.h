/* SPDX-License-Identifier: MIT */
/* json_number.h: numbers of JSON texts, free of the locale that strtod heeds. */
#ifndef KVS_ENGINE_JSON_NUMBER_H
#define KVS_ENGINE_JSON_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the number that s begins with; 0: it is malformed. */
size_t kvs__json_number_len(const char *s, size_t n);
/* Exact; false where the value is no integer or does not fit. */
bool kvs__json_number_int(const char *s, size_t n, int64_t *out);
/* Correctly rounded for up to 15 digits and exponents to 22, within two units of the last place
 * beyond; infinite where it overflows. */
double kvs__json_number_double(const char *s, size_t n);

#endif
