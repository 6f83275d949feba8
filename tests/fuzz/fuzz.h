/* SPDX-License-Identifier: MIT */
/* fuzz.h: what the fuzz targets share. A finding aborts; a target returns 0. */
#ifndef KVS_TESTS_FUZZ_FUZZ_H
#define KVS_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(x) ((x) ? (void)0 : abort())

#endif
