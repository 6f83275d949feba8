/* SPDX-License-Identifier: MIT */
/* store_vfs.h: where a store lies, and one on another file system than the host's (kvstore.c). */
#ifndef KVS_STORE_STORE_VFS_H
#define KVS_STORE_STORE_VFS_H

#include "base/vfs.h"
#include "kvstate/store.h"

kvs_status kvs__store_open_vfs(kvs_ctx *ctx, kvs__vfs *v, const char *dir,
                               const kvs_store_opts *opts, kvs_store **out, kvs_err *err);
/* Its directory, as it was opened; as long as the store. */
const char *kvs__store_dir(const kvs_store *s);

#endif
