# SPDX-License-Identifier: MIT
"""The public C interface as far as the live oracle needs it, through ctypes and NumPy.

Arrays travel as NumPy arrays whose dtype only gives the size (bf16 and f16 as uint16, f32 as
uint32 or float32); every call checks its status. Nothing here computes.
"""

import ctypes as C

import numpy as np

F32, F16, BF16 = 0, 1, 2
DTYPES = {"f32": F32, "f16": F16, "bf16": BF16}
WORD = {F32: np.uint32, F16: np.uint16, BF16: np.uint16}
GROW, RING = 0, 1
CAUSAL, BLOCK, BIDIRECTIONAL = 0, 1, 2
MASK_CAUSAL, MASK_RING_WINDOW, MASK_RING_DECODE = 0, 5, 6
TIER_ALL = 0x7FFFFFFF
OK, NO = 0, 1
_P, _U32, _I32, _SZ, _I64, _U64 = (
    C.c_void_p,
    C.c_uint32,
    C.c_int,
    C.c_size_t,
    C.c_int64,
    C.c_uint64,
)


class Err(C.Structure):
    _fields_ = [("status", _I32), ("errno", C.c_int32), ("room", C.c_char * 16)]
    _fields_ += [("msg", C.c_char * 240)]


class CtxOpts(C.Structure):
    _fields_ = [("struct_size", _SZ)] + [(n, _P) for n in ("alloc", "free", "alloc_user", "log")]
    _fields_ += [("log_user", _P), ("n_threads", _U32), ("tiers_off", _U32), ("max_bytes", _SZ)]


class Codec(C.Structure):
    _fields_ = [("bits", C.c_uint8), ("rotate", C.c_uint8), ("group", C.c_uint16)]
    _fields_ += [("dtype", _I32)]


class LayerSpec(C.Structure):
    _fields_ = [("struct_size", _SZ)] + [(n, _U32) for n in ("n_kv_heads", "k_dim", "v_dim")]
    _fields_ += [("k", Codec), ("v", Codec), ("layout", _I32)]
    _fields_ += [(n, _U32) for n in ("window", "sinks", "max_block", "dense_until")]
    _fields_ += [("dense_dtype", _I32)]


class CacheOpts(C.Structure):
    _fields_ = [("struct_size", _SZ), ("n_layers", _U32), ("layers", C.POINTER(LayerSpec))]
    _fields_ += [("reserve_tokens", _U64)]


class KV(C.Structure):
    _fields_ = [("struct_size", _SZ), ("n_tokens", _U32), ("dtype", _I32), ("k", _P), ("v", _P)]
    _fields_ += [(n, _SZ) for n in ("k_token", "k_head", "v_token", "v_head")]


class Attend(C.Structure):
    _fields_ = [("struct_size", _SZ), ("mode", _I32), ("n_queries", _U32), ("n_q_heads", _U32)]
    _fields_ += [("q_dtype", _I32), ("out_dtype", _I32), ("q", _P), ("q_token", _SZ)]
    _fields_ += [("q_head", _SZ), ("out", _P), ("out_token", _SZ), ("out_head", _SZ)]
    _fields_ += [("scale", C.c_float), ("softcap", C.c_float), ("sink_logits", _P)]
    _fields_ += [("q_pos", _I64), ("flags", _P), ("block", C.POINTER(KV))]


class Planes(C.Structure):
    _fields_ = [("struct_size", _SZ), ("k", _P * 3), ("v", _P * 3)]


class MaskDesc(C.Structure):
    _fields_ = [("struct_size", _SZ), ("kind", _I32), ("type", _I32), ("flags", _U32)]
    _fields_ += [("n_queries", _U32), ("n_rows", _U32)]
    _fields_ += [(n, _I64) for n in ("offset", "n_keys", "window", "sinks", "ring", "ring_index")]
    _fields_ += [("row_offsets", _P), ("pads", _P), ("paired", _P)]


class MaskShape(C.Structure):
    _fields_ = [("struct_size", _SZ), ("mode", _I32), ("n_dims", _U32), ("dims", _U64 * 4)]
    _fields_ += [("bytes", _SZ)]


def sized(struct, **fields):
    x = struct(**fields)
    x.struct_size = C.sizeof(struct)
    return x


def ptr(a):
    return None if a is None else a.ctypes.data


class Refused(Exception):
    pass


class Library:
    def __init__(self, path):
        self.c = C.CDLL(path)
        self.c.kvs_version.restype = C.c_char_p
        self.c.kvs_cache_length.restype = _I64
        self.c.kvs_cache_oldest.restype = _I64
        for f in ("kvs_ctx_free", "kvs_cache_free"):
            getattr(self.c, f).restype = None

    def call(self, name, *args):
        err = Err()
        status = getattr(self.c, name)(*args, C.byref(err))
        if status != OK:
            raise Refused(f"{name}: {status}: {err.msg.decode()}")


class Context:
    def __init__(self, library, tiers_off=0, threads=1):
        self.lib, self.handle = library, _P()
        opts = sized(CtxOpts, n_threads=threads, tiers_off=tiers_off)
        library.call("kvs_ctx_new", C.byref(opts), C.byref(self.handle))

    def close(self):
        self.lib.c.kvs_ctx_free(self.handle)

    def encode(self, x, src_dtype, codec, dim):
        """x: [n, dim]; (words, scales, biases) with n rows each."""
        n = len(x)
        word = WORD[codec.dtype]
        out = (
            np.empty((n, dim * codec.bits // 32), np.uint32),
            np.empty((n, dim // codec.group), word),
            np.empty((n, dim // codec.group), word),
        )
        self.lib.call(
            "kvs_codec_encode", self.handle, C.byref(codec), _U32(dim), _SZ(n), _P(ptr(x)),
            _I32(src_dtype), *(_P(ptr(a)) for a in out),
        )  # fmt: skip
        return out

    def decode(self, planes, codec, dim, f32=False):
        n = len(planes[0])
        y = np.empty((n, dim), np.float32 if f32 else WORD[codec.dtype])
        self.lib.call(
            "kvs_codec_decode_f32" if f32 else "kvs_codec_decode", self.handle, C.byref(codec),
            _U32(dim), _SZ(n), *(_P(ptr(a)) for a in planes), _P(ptr(y)),
        )  # fmt: skip
        return y


class Cache:
    """One layer, one row; K and V of one dim and codec, or each of its own."""

    def __init__(self, ctx, heads, dims, codecs, layout=GROW, window=0, sinks=0, max_block=0):
        self.ctx, self.lib, self.handle = ctx, ctx.lib, _P()
        self.heads, self.dims, self.codecs = heads, dims, list(codecs)
        self.again = ctx, heads, dims, layout, window, sinks, max_block
        spec = sized(
            LayerSpec, n_kv_heads=heads, k_dim=dims[0], v_dim=dims[1], k=codecs[0], v=codecs[1],
            layout=layout, window=window, sinks=sinks, max_block=max_block,
        )  # fmt: skip
        opts = sized(CacheOpts, n_layers=1, layers=C.pointer(spec))
        self.lib.call("kvs_cache_new", ctx.handle, C.byref(opts), C.byref(self.handle))

    def close(self):
        self.lib.c.kvs_cache_free(self.handle)

    def fresh(self):
        """An empty one of the same kind."""
        ctx, heads, dims, *rest = self.again
        return Cache(ctx, heads, dims, self.codecs, *rest)

    def __len__(self):
        return self.lib.c.kvs_cache_length(self.handle, 0)

    def oldest(self):
        return self.lib.c.kvs_cache_oldest(self.handle, 0)

    @staticmethod
    def kv(k, v, dtype):
        """k, v: [heads, n, dim] contiguous."""
        kv = sized(KV, n_tokens=k.shape[1], dtype=dtype, k=ptr(k), v=ptr(v))
        kv.k_token, kv.k_head = k.shape[2], k.shape[1] * k.shape[2]
        kv.v_token, kv.v_head = v.shape[2], v.shape[1] * v.shape[2]
        return kv

    def append(self, k, v, dtype):
        self.lib.call("kvs_cache_append", self.handle, _U32(0), C.byref(self.kv(k, v, dtype)))

    def can_rewind(self, n):
        return self.lib.c.kvs_cache_can_rewind(self.handle, _U32(0), _U64(n)) == OK

    def rewind(self, n):
        self.lib.call("kvs_cache_rewind", self.handle, _U32(0), _U64(n))

    def convert(self, codec):
        self.lib.call("kvs_cache_convert", self.handle, _U32(0), C.byref(codec), C.byref(codec))
        self.codecs = [codec, codec]

    def export(self, begin, n):
        """([K planes], [V planes]), each [heads, n, units]."""
        planes, out = sized(Planes), []
        for field, dim, codec in zip((planes.k, planes.v), self.dims, self.codecs):
            word = WORD[codec.dtype]
            shapes = [(dim, word)]
            if codec.bits:
                shapes = [(dim * codec.bits // 32, np.uint32)] + [(dim // codec.group, word)] * 2
            out.append([np.empty((self.heads, n, units), w) for units, w in shapes])
            for i, a in enumerate(out[-1]):
                field[i] = ptr(a)
        self.lib.call(
            "kvs_cache_export", self.handle, _U32(0), _I64(begin), _U64(n), C.byref(planes)
        )
        return out

    def load(self, begin, sides):
        """Imports ([K planes], [V planes]), each [heads, n, units], as positions from `begin`."""
        planes = sized(Planes)
        for field, side in zip((planes.k, planes.v), sides):
            for i, a in enumerate(side):
                field[i] = ptr(a)
        n = sides[0][0].shape[1]
        self.lib.call(
            "kvs_cache_import", self.handle, _U32(0), _I64(begin), _U64(n), C.byref(planes)
        )

    def attend(self, q, q_dtype, scale, mode=CAUSAL, sinks=None, flags=None, block=None):
        """q: [q_heads, n, k_dim]; float32 [q_heads, n, v_dim]."""
        heads, n, dim = q.shape
        out = np.empty((heads, n, self.dims[1]), np.float32)
        a = sized(
            Attend, mode=mode, n_queries=n, n_q_heads=heads, q_dtype=q_dtype, out_dtype=F32,
            q=ptr(q), q_token=dim, q_head=n * dim, out=ptr(out), out_token=self.dims[1],
            out_head=n * self.dims[1], scale=scale, sink_logits=ptr(sinks), q_pos=-1,
            flags=ptr(flags),
        )  # fmt: skip
        if block is not None:
            kv = self.kv(*block)
            a.block = C.pointer(kv)
        self.lib.call("kvs_cache_attend", self.handle, _U32(0), C.byref(a))
        return out


def mask(library, **fields):
    """(mode, array of bytes): mode 0 none, 1 causal, 2 array."""
    desc, shape = sized(MaskDesc, **fields), sized(MaskShape)
    library.call("kvs_mask_plan", C.byref(desc), C.byref(shape))
    out = np.empty(list(shape.dims[: shape.n_dims]), np.uint8)
    library.call("kvs_mask_fill", C.byref(desc), _P(ptr(out)), _SZ(out.nbytes))
    return shape.mode, out
