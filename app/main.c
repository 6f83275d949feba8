/* SPDX-License-Identifier: MIT */
/* main.c: the kvstate program: picks the command. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "util.h"

const command_def command_table[] = {
    {"run", CMD_RUN, "complete a prompt", cmd_run},
    {"chat", CMD_CHAT, "talk with a model", cmd_chat},
    {"bench", CMD_BENCH, "measure prompt and answer speed", cmd_bench},
    {"inspect", CMD_INSPECT, "show a model file and the memory its state would take", cmd_inspect},
    {"cache", CMD_CACHE, "list, check and move saved state", cmd_cache},
    {"perplexity", CMD_PERPLEXITY, "what plans cost in quality, on a text", cmd_perplexity},
    {"tune", CMD_TUNE, "choose bits for each layer under a byte budget", cmd_tune},
};
const size_t n_commands = sizeof command_table / sizeof command_table[0];

static int help(FILE *out)
{
    (void)fputs("usage: kvstate COMMAND [OPTIONS]\n\n", out);
    for (size_t i = 0; i < n_commands; i++) {
        (void)fprintf(out, "  %-10s %s\n", command_table[i].name, command_table[i].help);
    }
    (void)fputs("\n"
                "  --version            version and CPU kernels\n"
                "  --completion SHELL   completion script for bash, zsh or fish\n"
                "  --help               this text; kvstate COMMAND --help for its options\n"
                "\n"
                "Every option may also be given as an environment variable, KVSTATE_LONG_NAME.\n"
                "Exit status: 0 done, 1 failed, 2 usage, 3 bad model or input file, 4 not enough\n"
                "memory or context, 130 interrupted. kvstate(1) is the manual.\n",
                out);
    return 0;
}

static int version(void)
{
    uint32_t tiers = kvs_cpu_tiers();
    (void)printf("kvstate %s\nkernels:%s%s%s ref\n", kvs_version(),
                 tiers & KVS_TIER_AVX512 ? " avx512" : "", tiers & KVS_TIER_AVX2 ? " avx2" : "",
                 tiers & KVS_TIER_NEON ? " neon" : "");
    return 0;
}

static int command(const command_def *c, int argc, char **argv)
{
    static settings s;
    int rc = options_parse(&s, c->bit, c->name, argc, argv);
    if (rc != 0) {
        return rc;
    }
    if (s.help) {
        (void)printf("usage: kvstate %s [OPTIONS] %s\n\n%s\n\n", c->name,
                     c->bit == CMD_CACHE
                         ? "ls|verify|gc|export KEY FILE|import FILE|dump [PATH]|simulate TRACE"
                         : "MODEL",
                     c->help);
        options_help(stdout, c->bit);
        return 0;
    }
    return c->fn(&s);
}

/* A standard stream that was closed is taken by something on which it fails: else the next file that
 * is opened, e.g. of the saved state, would get its number, and with it the text. */
static bool take_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) == -1 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    const char *first = argc > 1 ? argv[1] : "";
    if (!take_streams()) {
        return EXIT_FAILED;
    }
    if (argc < 2) {
        (void)help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0 || strcmp(first, "help") == 0) {
        return finish_stdout(help(stdout));
    }
    if (strcmp(first, "--version") == 0) {
        return finish_stdout(version());
    }
    if (strcmp(first, "--completion") == 0) {
        return finish_stdout(print_completion(argc > 2 ? argv[2] : ""));
    }
    for (size_t i = 0; i < n_commands; i++) {
        if (strcmp(first, command_table[i].name) == 0) {
            return finish_stdout(command(&command_table[i], argc - 1, argv + 1));
        }
    }
    return fail(EXIT_USAGE, "unknown command \"%s\"; kvstate --help lists them", first);
}
