/* SPDX-License-Identifier: MIT */
/* gguf.c: the reader of GGUF files. */
#include "engine/gguf.h"

typedef int kvs__gguf_empty;
