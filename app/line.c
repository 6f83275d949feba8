/* SPDX-License-Identifier: MIT */
/* line.c: see line.h. */
#include "line.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#ifdef KVS_HAVE_LIBEDIT
#include <histedit.h>
#endif

#define HISTORY_LINES 1000

struct line_input {
    bool tty;
    int error;  /* errno of a read that failed */
    char *line; /* of getline */
    size_t cap;
    char *entry;
    size_t n_entry, cap_entry;
    const char *prompt;
#ifdef KVS_HAVE_LIBEDIT
    EditLine *el;
    History *history;
    char *path; /* NULL: the history is not kept */
#endif
};

#ifdef KVS_HAVE_LIBEDIT

static char *show_prompt(EditLine *el)
{
    void *data = NULL;
    (void)el_get(el, EL_CLIENTDATA, &data);
    return (char *)(uintptr_t)((line_input *)data)->prompt;
}

/* Reads a character; unlike libedit's own it ends at a signal. */
static int get_char(EditLine *el, wchar_t *out)
{
    mbstate_t state;
    memset(&state, 0, sizeof state);
    (void)el;
    for (int i = 0; i < 8; i++) {
        char byte = 0;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR && !interrupted()) {
            i--;
            continue;
        }
        if (n <= 0) {
            return n == 0 ? 0 : -1;
        }
        size_t len = mbrtowc(out, &byte, 1, &state);
        if (len == (size_t)-1) {
            *out = 0xfffd;
            return 1;
        }
        if (len != (size_t)-2) {
            return 1;
        }
    }
    *out = 0xfffd;
    return 1;
}

/* Makes a directory of the path's and those above it. */
static bool make_directory(char *path)
{
    for (char *p = path + 1; *p; p++) {
        if (*p == '/') {
            *p = '\0';
            int rc = mkdir(path, 0700);
            *p = '/';
            if (rc != 0 && errno != EEXIST) {
                return false;
            }
        }
    }
    return true;
}

static char *history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    bool has_state = state && state[0] == '/';
    if (!has_state && (!home || home[0] != '/')) {
        return NULL;
    }
    size_t n = strlen(has_state ? state : home) + 64;
    char *path = malloc(n);
    if (path) {
        (void)snprintf(path, n, "%s%s/kvstate/history", has_state ? state : home,
                       has_state ? "" : "/.local/state");
    }
    return path;
}

static void open_history(line_input *l, const settings *s, bool keep)
{
    HistEvent ev;
    l->history = history_init();
    if (!l->history) {
        return;
    }
    (void)history(l->history, &ev, H_SETSIZE, HISTORY_LINES);
    (void)history(l->history, &ev, H_SETUNIQUE, 1);
    (void)el_set(l->el, EL_HIST, history, l->history);
    l->path = keep ? history_path() : NULL;
    if (!l->path) {
        return;
    }
    int fd = make_directory(l->path) ? open(l->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0 || fchmod(fd, 0600) != 0) {
        note(s, "the history is not kept: %s: %s", l->path, strerror(errno));
        free(l->path);
        l->path = NULL;
    } else {
        (void)history(l->history, &ev, H_LOAD, l->path);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

static void open_editor(line_input *l, const settings *s, bool keep)
{
    (void)setlocale(LC_CTYPE, "");
    l->el = el_init("kvstate", stdin, stdout, stderr);
    if (!l->el) {
        return;
    }
    (void)el_set(l->el, EL_CLIENTDATA, l);
    (void)el_set(l->el, EL_PROMPT, show_prompt);
    (void)el_set(l->el, EL_EDITOR, "emacs");
    (void)el_set(l->el, EL_SIGNAL, 0);
    (void)el_set(l->el, EL_GETCFN, get_char);
    (void)el_set(l->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    open_history(l, s, keep);
    /* libedit does not know bracketed paste: its brackets would be typed text */
    (void)fputs("\033[?2004l", stdout);
    (void)fflush(stdout);
}

static line_status edit_line(line_input *l, const char **text, size_t *n)
{
    int count = 0;
    /* before the prompt shows, or a Ctrl-D that follows it at once is read as an end of file that
     * libedit never sees */
    (void)el_set(l->el, EL_PREP_TERM, 1);
    const char *p = el_gets(l->el, &count);
    if (interrupted()) {
        el_reset(l->el);
        return LINE_INTERRUPTED;
    }
    if (!p || count <= 0) {
        return LINE_END;
    }
    *text = p;
    *n = (size_t)count;
    return LINE_GOT;
}

static void remember(line_input *l, const char *text)
{
    HistEvent ev;
    if (l->el && l->history && text[0] && text[0] != '\n') {
        (void)history(l->history, &ev, H_ENTER, text);
    }
}

static void close_editor(line_input *l)
{
    HistEvent ev;
    if (l->history && l->path) {
        mode_t before = umask(077);
        (void)history(l->history, &ev, H_SAVE, l->path);
        (void)umask(before);
    }
    if (l->history) {
        history_end(l->history);
    }
    if (l->el) {
        el_end(l->el);
    }
    free(l->path);
}

#endif

int line_open(const settings *s, bool history, line_input **out)
{
    line_input *l = calloc(1, sizeof *l);
    if (!l) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    l->tty = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    l->prompt = "";
#ifdef KVS_HAVE_LIBEDIT
    if (l->tty) {
        open_editor(l, s, history);
    }
#else
    (void)s;
    (void)history;
#endif
    *out = l;
    return 0;
}

void line_close(line_input *l)
{
    if (!l) {
        return;
    }
#ifdef KVS_HAVE_LIBEDIT
    close_editor(l);
#endif
    free(l->line);
    free(l->entry);
    free(l);
}

bool line_is_tty(const line_input *l)
{
    return l->tty;
}

int line_error(const line_input *l)
{
    return l->error;
}

/* A line with its newline, if it has one. */
static line_status raw_line(line_input *l, const char *prompt, const char **text, size_t *n)
{
    l->prompt = prompt;
    (void)fflush(stdout);
#ifdef KVS_HAVE_LIBEDIT
    if (l->el) {
        return edit_line(l, text, n);
    }
#endif
    if (l->tty) {
        (void)fputs(prompt, stdout);
        (void)fflush(stdout);
    }
    errno = 0;
    ssize_t got = getline(&l->line, &l->cap, stdin);
    if (got < 0) {
        l->error = ferror(stdin) && !interrupted() ? errno : 0;
        clearerr(stdin);
        return interrupted() ? LINE_INTERRUPTED : LINE_END;
    }
    *text = l->line;
    *n = (size_t)got;
    return LINE_GOT;
}

/* Without its newline; what was typed goes to the history. */
static line_status trimmed_line(line_input *l, const char *prompt, const char **text, size_t *n)
{
    line_status st = raw_line(l, prompt, text, n);
    if (st != LINE_GOT) {
        return st;
    }
#ifdef KVS_HAVE_LIBEDIT
    remember(l, *text);
#endif
    if (*n > 0 && (*text)[*n - 1] == '\n') {
        (*n)--;
    }
    return LINE_GOT;
}

static bool append(line_input *l, const char *text, size_t n)
{
    if (l->cap_entry - l->n_entry <= n) {
        size_t cap = 2 * (l->n_entry + n) + 256;
        char *p = realloc(l->entry, cap);
        if (!p) {
            return false;
        }
        l->entry = p;
        l->cap_entry = cap;
    }
    memcpy(l->entry + l->n_entry, text, n);
    l->n_entry += n;
    l->entry[l->n_entry] = '\0';
    return true;
}

static bool ends_in(const line_input *l, size_t from, const char *what)
{
    size_t len = strlen(what);
    return l->n_entry - from >= len && memcmp(l->entry + l->n_entry - len, what, len) == 0;
}

/* Three quotes again, or a line without a backslash at its end. Takes the backslash away. */
static bool is_whole(line_input *l, size_t from, bool quoted)
{
    if (quoted) {
        return ends_in(l, from, "\"\"\"");
    }
    if (!ends_in(l, from, "\\")) {
        return true;
    }
    l->n_entry--;
    return false;
}

/* The entry without the quotes around it, and without the newlines of quotes on lines of their
 * own. */
static void unquote(line_input *l, const char **text, size_t *n)
{
    if (ends_in(l, 0, "\"\"\"")) {
        l->n_entry -= 3;
        l->n_entry -= (size_t)ends_in(l, 0, "\n");
        l->entry[l->n_entry] = '\0';
    }
    size_t skip = l->n_entry > 0 && l->entry[0] == '\n';
    *text = l->entry + skip;
    *n = l->n_entry - skip;
}

line_status line_read(line_input *l, const char *prompt, const char **text, size_t *n)
{
    const char *line = NULL;
    size_t len = 0;
    bool ok = true;
    l->n_entry = 0;
    line_status st = trimmed_line(l, prompt, &line, &len);
    if (st != LINE_GOT) {
        return st;
    }
    bool quoted = len >= 3 && memcmp(line, "\"\"\"", 3) == 0;
    size_t skip = quoted ? 3 : 0;
    ok = append(l, line + skip, len - skip);
    for (size_t from = 0; ok && !is_whole(l, from, quoted);) {
        st = trimmed_line(l, "... ", &line, &len);
        if (st == LINE_INTERRUPTED) {
            return st;
        }
        if (st == LINE_END) {
            break;
        }
        ok = append(l, "\n", 1);
        from = l->n_entry;
        ok = ok && append(l, line, len);
    }
    if (!ok) {
        return LINE_END;
    }
    *text = l->entry;
    *n = l->n_entry;
    if (quoted) {
        unquote(l, text, n);
    }
    return LINE_GOT;
}
