/* SPDX-License-Identifier: MIT */
/* peer.h: programs that a bench starts: their output, the time of its first byte, and the speeds
 * that llama.cpp's llama-bench reports for one case. A program that cannot be run gives nothing;
 * the bench says so and goes on. */
#ifndef KVS_BENCH_PEER_H
#define KVS_BENCH_PEER_H

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "limits.h"

#define PEER_ARGS 32

/* Runs argv and keeps its output, cut at n - 1 bytes. Seconds from before the fork to the first
 * byte are in *first. False if it did not end with status 0. */
static bool program_output(const char *const *argv, char *dst, size_t n, double *first)
{
    int fd[2];
    size_t used = 0;
    double start = bench_now();
    *first = 0;
    if (pipe(fd) != 0) {
        return false;
    }
    pid_t pid = fork();
    if (pid == 0) {
        char *args[PEER_ARGS] = {NULL};
        int quiet = open("/dev/null", O_WRONLY);
        for (size_t i = 0; argv[i] && i + 1 < PEER_ARGS; i++) {
            args[i] = strdup(argv[i]);
        }
        (void)dup2(fd[1], STDOUT_FILENO);
        (void)dup2(quiet, STDERR_FILENO);
        (void)close(fd[0]);
        (void)execv(args[0], args);
        _exit(127);
    }
    (void)close(fd[1]);
    for (ssize_t got = pid > 0; got > 0;) {
        char rest[256];
        bool room = used + 1 < n;
        got = read(fd[0], room ? dst + used : rest, room ? n - 1 - used : sizeof rest);
        *first = *first > 0 ? *first : bench_now() - start;
        used += room && got > 0 ? (size_t)got : 0;
    }
    (void)close(fd[0]);
    dst[used] = '\0';
    int status = 1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

typedef struct peer_case {
    const char *dir; /* its build folder */
    const char *model;
    const char *type; /* of K and V */
    uint32_t threads;
    uint32_t n_prompt; /* a prompt of that length, or ... */
    uint32_t n_gen;    /* ... that many tokens one by one ... */
    uint32_t depth;    /* ... after that many */
    uint32_t n_runs;   /* one after another, in one process */
} peer_case;

/* Tokens/s of the runs of a case; how many there are. Its usual warm-up is left out where the
 * prompt is long: it is a run of the whole prompt, and first touches are lost in that length. */
__attribute__((unused)) static size_t peer_rates(const peer_case *c, double *rates, size_t most)
{
    static char text[16384];
    char exe[512];
    char num[5][16];
    double first = 0;
    const uint32_t value[5] = {c->threads, c->n_prompt, c->n_gen, c->depth, c->n_runs};
    for (size_t i = 0; i < 5; i++) {
        (void)snprintf(num[i], sizeof num[i], "%u", value[i]);
    }
    (void)snprintf(exe, sizeof exe, "%s/bin/llama-bench", c->dir);
    const char *const argv[PEER_ARGS] = {
        exe,      "-m",
        c->model, "-t",
        num[0],   "-fa",
        "on",     "-ctk",
        c->type,  "-ctv",
        c->type,  "-p",
        num[1],   "-n",
        num[2],   "-d",
        num[3],   "-r",
        num[4],   "-o",
        "json",   c->n_prompt > 1024 ? "--no-warmup" : NULL,
    };
    if (!program_output(argv, text, sizeof text, &first)) {
        (void)fprintf(stderr, "%s -ctk %s -p %u -n %u -d %u failed\n", exe, c->type, c->n_prompt,
                      c->n_gen, c->depth);
        return 0;
    }
    const char *p = strstr(text, "\"samples_ts\"");
    p = p ? strchr(p, '[') : NULL;
    size_t n = 0;
    while (p && n < most) {
        char *end = NULL;
        rates[n] = strtod(p + 1, &end);
        if (end == p + 1) {
            break;
        }
        n++;
        p = *end == ',' ? end : NULL;
    }
    return n;
}

#endif
