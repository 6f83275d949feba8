/* SPDX-License-Identifier: MIT */
/* util.h: messages, exit codes, signals, time and JSON text for all commands. */
#ifndef KVS_APP_UTIL_H
#define KVS_APP_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kvstate/engine.h"
#include "options.h"

enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_INPUT = 3,  /* a model or other file is missing, malformed or not supported */
    EXIT_MEMORY = 4, /* not enough memory or context */
    EXIT_SIGINT = 130,
    EXIT_SIGTERM = 143
};

#if defined(__GNUC__)
#define APP_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#else
#define APP_PRINTF(fmt, first)
#endif

/* "kvstate: <text>" on stderr; returns code, so that a failure is one line. */
int fail(int code, const char *fmt, ...) APP_PRINTF(2, 3);
/* The same for a library error; EXIT_MEMORY where the status says so, else `code`. */
int fail_err(int code, kvs_status status, const kvs_err *err, const char *hint);
void note(const settings *s, const char *fmt, ...) APP_PRINTF(2, 3);

double now_seconds(void);

/* First SIGINT or SIGTERM sets a flag, the second ends the program. */
void catch_signals(void);
int interrupted(void); /* 0, EXIT_SIGINT or EXIT_SIGTERM */
/* Forgets a SIGINT: it stopped an answer, not the program. */
void interrupt_done(void);

/* A context as the options say. */
int make_ctx(settings *s, kvs_ctx **out);
/* Opens s->model. */
int open_model(const settings *s, kvs_ctx *ctx, uint32_t flags, kvs_model **out);
/* The plan of the options, with `kv` instead of s->kv where given. */
int make_plan(const settings *s, kvs_ctx *ctx, const kvs_model *model, const char *kv,
              kvs_plan **out);

/* Tokens computed together: what the options say, at most what the plan allows. */
uint32_t block_of(const settings *s, const kvs_plan *plan);

/* Bytes of the character at p, 0 where it is no UTF-8 (overlong and surrogate forms are none). */
size_t utf8_length(const unsigned char *p, size_t left);
/* 0, or EXIT_USAGE with a message that names the first byte of `what` that is none. */
int check_utf8(const char *what, const char *text, size_t n);
/* A JSON string in quotes; what is not UTF-8 becomes U+FFFD. */
void json_text(FILE *out, const char *text, size_t n);
/* "1.5 MiB". */
const char *format_bytes(char *dst, size_t n, double bytes);
/* 0, or a message: a result of long work would have nowhere to go. NULL is fine. */
int check_writable(const char *path);
/* Flushes stdout; EXIT_FAILED with a message where that fails. */
int finish_stdout(int code);

#endif
