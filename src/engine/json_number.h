/* SPDX-License-Identifier: MIT */
/* json_number.h: decimal numbers of texts, free of the locale that strtod heeds. */
#ifndef KVS_ENGINE_JSON_NUMBER_H
#define KVS_ENGINE_JSON_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the JSON number that s begins with; 0: it is malformed. *whole: it has neither fraction
 * nor exponent. */
size_t kvs__json_number_len(const char *s, size_t n, bool *whole);

/* The three below take a sign, digits with at most one point among them, and an exponent of digits
 * after e, E and a sign: what JSON allows, and also ".5", "5." and "+5". */

/* Exact; false where the value is no integer or does not fit. */
bool kvs__json_number_int(const char *s, size_t n, int64_t *out);
/* The nearest double, to even between two, for any number of digits; infinite beyond the largest. */
double kvs__json_number_double(const char *s, size_t n);
/* Digits as an integer, rounded to a double, then times or over a power of ten, rounded again: what
 * readers that trade the last bit for speed make of it, among them the one that Hugging Face
 * `tokenizers` reads files with. At most one unit of the last place from the nearest. Exponents
 * beyond 22 give the nearest. */
double kvs__json_number_rounded_twice(const char *s, size_t n);

#endif
