/* SPDX-License-Identifier: MIT */
/* completion.c: completion scripts, made from the option table so that they can't fall behind. */
#include <string.h>

#include "commands.h"
#include "util.h"

typedef void (*each_fn)(const command_def *c, const option_def *o, const char *name);

static void each_name(const command_def *c, each_fn fn)
{
    char name[32];
    for (size_t i = 0; i < n_options; i++) {
        const option_def *o = &option_table[i];
        for (size_t k = 0; o->commands & c->bit && option_name(o, k, name, sizeof name); k++) {
            if (name[1] != '\0') {
                fn(c, o, name);
            }
        }
    }
}

static void bash_name(const command_def *c, const option_def *o, const char *name)
{
    (void)c;
    (void)o;
    (void)printf(" --%s", name);
}

static int bash(void)
{
    (void)puts("_kvstate() {\n"
               "    local cur=${COMP_WORDS[COMP_CWORD]} words\n"
               "    case ${COMP_CWORD}:${COMP_WORDS[1]} in");
    for (size_t i = 0; i < n_commands; i++) {
        (void)printf("    [2-9]*:%s|[1-9][0-9]*:%s) words=\"", command_table[i].name,
                     command_table[i].name);
        each_name(&command_table[i], bash_name);
        (void)puts("\" ;;");
    }
    (void)fputs("    *) words=\"", stdout);
    for (size_t i = 0; i < n_commands; i++) {
        (void)printf("%s ", command_table[i].name);
    }
    (void)puts("--help --version --completion\" ;;\n"
               "    esac\n"
               "    if [[ $cur == -* || $COMP_CWORD -eq 1 ]]; then\n"
               "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
               "    else\n"
               "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
               "    fi\n"
               "}\n"
               "complete -o filenames -F _kvstate kvstate");
    return 0;
}

/* Help text inside single quotes and brackets: neither may appear. */
static void plain_help(const char *help)
{
    for (; *help; help++) {
        (void)putchar(strchr("'[]:", *help) ? ' ' : *help);
    }
}

static void zsh_name(const command_def *c, const option_def *o, const char *name)
{
    (void)c;
    (void)printf("            '--%s[", name);
    plain_help(o->help);
    (void)printf("]%s%s%s'\n", o->arg ? ":" : "", o->arg ? o->arg : "",
                 !o->arg                       ? ""
                 : strcmp(o->arg, "FILE") == 0 ? ":_files"
                                               : ":");
}

static int zsh(void)
{
    (void)puts("#compdef kvstate\n"
               "_kvstate() {\n"
               "    local -a args\n"
               "    if (( CURRENT == 2 )); then");
    (void)fputs("        compadd --", stdout);
    for (size_t i = 0; i < n_commands; i++) {
        (void)printf(" %s", command_table[i].name);
    }
    (void)puts(" --help --version --completion\n"
               "        return\n"
               "    fi\n"
               "    case $words[2] in");
    for (size_t i = 0; i < n_commands; i++) {
        (void)printf("    %s)\n        args=(\n", command_table[i].name);
        each_name(&command_table[i], zsh_name);
        (void)puts("        ) ;;");
    }
    (void)puts("    esac\n"
               "    shift words; (( CURRENT-- ))\n"
               "    _arguments $args '*:model:_files'\n"
               "}\n"
               "compdef _kvstate kvstate");
    return 0;
}

static void fish_name(const command_def *c, const option_def *o, const char *name)
{
    (void)printf("complete -c kvstate -n '__fish_seen_subcommand_from %s' -l %s %s-d '", c->name,
                 name, o->arg ? "-r " : "");
    plain_help(o->help);
    (void)puts("'");
}

static int fish(void)
{
    for (size_t i = 0; i < n_commands; i++) {
        (void)printf("complete -c kvstate -n __fish_use_subcommand -a %s -d '%s'\n",
                     command_table[i].name, command_table[i].help);
    }
    for (size_t i = 0; i < n_commands; i++) {
        each_name(&command_table[i], fish_name);
    }
    return 0;
}

int print_completion(const char *shell)
{
    if (strcmp(shell, "bash") == 0) {
        return bash();
    }
    if (strcmp(shell, "zsh") == 0) {
        return zsh();
    }
    if (strcmp(shell, "fish") == 0) {
        return fish();
    }
    return fail(EXIT_USAGE, "--completion: \"%s\" is none of bash, zsh, fish", shell);
}
