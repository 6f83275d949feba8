/* SPDX-License-Identifier: MIT */
/* gguf.h: read-only access to a GGUF model file. */
#ifndef KVS_ENGINE_GGUF_H
#define KVS_ENGINE_GGUF_H
#endif
