# SPDX-License-Identifier: MIT
"""Just enough of libkvstate_engine through ctypes to ask a model for logits."""
import ctypes as c
import os
import sys

import numpy as np


class Err(c.Structure):
    _fields_ = [("status", c.c_int), ("sys_errno", c.c_int32), ("room", c.c_char * 16),
                ("msg", c.c_char * 240)]


class CtxOpts(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("alloc", c.c_void_p), ("free", c.c_void_p),
                ("alloc_user", c.c_void_p), ("log", c.c_void_p), ("log_user", c.c_void_p),
                ("n_threads", c.c_uint32), ("tiers_off", c.c_uint32), ("max_bytes", c.c_size_t)]


class PlanOpts(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("kv", c.c_char_p), ("k", c.c_char_p),
                ("v", c.c_char_p), ("group", c.c_uint32), ("start", c.c_uint32),
                ("window", c.c_uint32), ("sinks", c.c_uint32), ("n_ctx", c.c_uint32),
                ("max_block", c.c_uint32), ("flags", c.c_uint32)]


class SessionOpts(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("plan", c.c_void_p), ("block", c.c_uint32),
                ("flags", c.c_uint32), ("progress", c.c_void_p), ("progress_user", c.c_void_p)]


LOGITS_FN = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int64, c.POINTER(c.c_float), c.c_size_t)


class Eval(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("tokens", c.POINTER(c.c_int32)),
                ("n_tokens", c.c_size_t), ("logits_from", c.c_size_t), ("on_logits", LOGITS_FN),
                ("user", c.c_void_p)]


class Engine:
    """One model and a plan; logits() starts from an empty session each time."""

    def __init__(self, library, model, kv="f32", threads=0, block=0, **plan):
        self.lib = c.CDLL(library)
        self.err = Err()
        self.ctx = c.c_void_p()
        self.model = c.c_void_p()
        self.plan = c.c_void_p()
        self.session = c.c_void_p()
        self._call("kvs_ctx_new", c.byref(self._opts(CtxOpts, n_threads=threads)),
                   c.byref(self.ctx))
        self._call("kvs_model_open", self.ctx, model.encode(), None, c.byref(self.model))
        self._call("kvs_plan_new", self.ctx, self.model,
                   c.byref(self._opts(PlanOpts, kv=kv.encode(), **{"n_ctx": 2048, **plan})),
                   c.byref(self.plan))
        opts = self._opts(SessionOpts, plan=self.plan, block=block)
        self._call("kvs_session_new", self.ctx, self.model, c.byref(opts), c.byref(self.session))

    @staticmethod
    def _opts(kind, **fields):
        return kind(struct_size=c.sizeof(kind), **fields)

    def _call(self, name, *args):
        status = getattr(self.lib, name)(*args, c.byref(self.err))
        if status != 0:
            raise RuntimeError("%s: %d %s" % (name, status, self.err.msg.decode()))

    def logits(self, tokens, first):
        """Rows of logits after tokens[first:], float32 [len(tokens) - first][n_vocab]."""
        rows = []

        def take(_user, _pos, logits, n_vocab):
            rows.append(np.ctypeslib.as_array(logits, (n_vocab,)).copy())
            return 0

        self._call("kvs_session_sync", self.session, None, c.c_size_t(0), None)
        array = (c.c_int32 * len(tokens))(*tokens)
        ev = self._opts(Eval, tokens=array, n_tokens=len(tokens), logits_from=first,
                        on_logits=LOGITS_FN(take))
        self._call("kvs_session_eval", self.session, c.byref(ev))
        return np.stack(rows)

    def steps(self, tokens, n_prompt):
        """All rows of logits, the prompt computed at once and every other token alone."""
        rows = [self.logits(tokens[:n_prompt], 0)]
        self.lib.kvs_session_logits.restype = c.POINTER(c.c_float)
        n_vocab = rows[0].shape[1]
        for token in tokens[n_prompt:]:
            one = (c.c_int32 * 1)(token)
            self._call("kvs_session_append", self.session, one, c.c_size_t(1))
            row = self.lib.kvs_session_logits(self.session)
            rows.append(np.ctypeslib.as_array(row, (n_vocab,)).copy()[None])
        return np.concatenate(rows)

    def close(self):
        self.lib.kvs_session_free(self.session)
        self.lib.kvs_plan_free(self.plan)
        self.lib.kvs_model_close(self.model)
        self.lib.kvs_ctx_free(self.ctx)


def find_model(name):
    """Path of a model that scripts/fetch-model.sh unpacked, or None and a SKIP line."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = os.path.join(cache, "kvstate", "models", name)
    if os.path.exists(path):
        return path
    print("SKIP: %s is absent; scripts/fetch-model.sh gets it" % path)
    return None


def cases(golden, model):
    """Recorded cases of a model file, and its path; exits 77 where the file is absent."""
    path = find_model(model)
    if not path:
        sys.exit(77)
    return golden["models"][model]["cases"], path
