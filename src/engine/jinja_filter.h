/* SPDX-License-Identifier: MIT */
/* jinja_filter.h: between the two files of filters. */
#ifndef KVS_ENGINE_JINJA_FILTER_H
#define KVS_ENGINE_JINJA_FILTER_H

#include "engine/jinja.h"

/* Among the filters of sequences, or NULL. */
const kvs__jfilter *kvs__jseq_filter(const char *name, size_t n);

#endif
