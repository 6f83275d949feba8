/* SPDX-License-Identifier: MIT */
/* line.h: lines from a person or a pipe. On a terminal with libedit (where it was there at build
 * time): editing, and a history that is kept in the XDG state directory, readable by its owner
 * alone. Otherwise plain lines. */
#ifndef KVS_APP_LINE_H
#define KVS_APP_LINE_H

#include "util.h"

typedef struct line_input line_input;

/* history: keep one between runs. */
int line_open(const settings *s, bool history, line_input **out);
void line_close(line_input *l); /* NULL is fine; writes the history */
bool line_is_tty(const line_input *l);
/* errno where reading failed before LINE_END, else 0. */
int line_error(const line_input *l);

typedef enum line_status {
    LINE_GOT,
    LINE_END,        /* Ctrl-D or the end of the file */
    LINE_INTERRUPTED /* Ctrl-C: whatever was typed is dropped */
} line_status;

/* One entry: a line; several where lines end in a backslash or the first begins with three quotes,
 * then up to three quotes again. Borrowed until the next call; no newline at its end. */
line_status line_read(line_input *l, const char *prompt, const char **text, size_t *n);

#endif
