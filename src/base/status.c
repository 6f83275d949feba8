/* SPDX-License-Identifier: MIT */
/* status.c: names and texts of status codes, and the one place that fills a kvs_err. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

const char *kvs_status_name(kvs_status status)
{
    switch (status) {
#define KVS_X(name, code, text)                                                                    \
    case name:                                                                                     \
        return #name;
        KVS_STATUS_MAP(KVS_X)
#undef KVS_X
    }
    return "unknown status";
}

const char *kvs_status_text(kvs_status status)
{
    switch (status) {
#define KVS_X(name, code, text)                                                                    \
    case name:                                                                                     \
        return text;
        KVS_STATUS_MAP(KVS_X)
#undef KVS_X
    }
    return "unknown status";
}

const char *kvs_version(void)
{
    return KVS_VERSION_STRING;
}

KVS_PRINTF(5, 0)
static void fill(kvs_err *err, kvs_status status, int sys_errno, const char *room, const char *fmt,
                 va_list ap) KVS_PRINTF(5, 0);

KVS_PRINTF(5, 0)
static void fill(kvs_err *err, kvs_status status, int sys_errno, const char *room, const char *fmt,
                 va_list ap)
{
    memset(err, 0, sizeof *err);
    err->status = status;
    err->sys_errno = sys_errno;
    (void)snprintf(err->room, sizeof err->room, "%s", room);
    (void)vsnprintf(err->msg, sizeof err->msg, fmt, ap);
}

#undef kvs__fail /* base.h wraps it for the analyser */
kvs_status kvs__fail(kvs_err *err, kvs_status status, const char *room, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        fill(err, status, 0, room, fmt, ap);
        va_end(ap);
    }
    return status;
}

/* strerror_r comes in two incompatible shapes; both are served by looking at the result. */
static const char *errno_text(int e, char *buf, size_t n)
{
    (void)snprintf(buf, n, "errno %d", e);
#if defined(__GLIBC__) && defined(_GNU_SOURCE)
    return strerror_r(e, buf, n);
#else
    return strerror_r(e, buf, n) == 0 ? buf : "unknown error";
#endif
}

kvs_status kvs__fail_errno(kvs_err *err, kvs_status status, int sys_errno, const char *room,
                           const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        fill(err, status, sys_errno, room, fmt, ap);
        va_end(ap);
        size_t used = strlen(err->msg);
        char buf[96];
        (void)snprintf(err->msg + used, sizeof err->msg - used, ": %s",
                       errno_text(sys_errno, buf, sizeof buf));
    }
    return status;
}

kvs_status kvs__nomem(kvs_err *err, const char *room, size_t bytes)
{
    return kvs__fail(err, KVS_E_NOMEM, room, "allocation of %zu bytes failed", bytes);
}
