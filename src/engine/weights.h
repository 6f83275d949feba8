/* SPDX-License-Identifier: MIT */
/* weights.h: the digest of a model's weights and hyper-parameters, under which state is saved.
 *
 * It is SHA-256 of all bytes of the mapped files: names, dates or samples of the content could let
 * the state of one model pass for that of another. That takes a second for some GB, so the digest is
 * remembered in DIR/weights with what tells that a file is still the one that was read: device,
 * inode, size, and the times at which content and inode changed, taken from the descriptor that was
 * mapped. Programs can set back the first time, not the second. A file that changed less than two
 * seconds ago is not remembered, since the same time could stand for two contents. */
#ifndef KVS_ENGINE_WEIGHTS_H
#define KVS_ENGINE_WEIGHTS_H

#include "engine/net.h"

/* dir: NULL, or where digests are remembered; nothing there can make it fail. */
kvs_status kvs__weights_digest(const kvs_model *m, const char *dir, uint8_t out[32], kvs_err *err);

#endif
