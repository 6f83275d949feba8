#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""trace_gen.py KIND USES: writes a made-up trace for `kvstate cache simulate`, the same every time.

Each kind has statistics of its own, none taken from a real trace; block 0 is the system prompt that
all requests of most kinds share.

documents  questions about documents of Zipf popularity (0.9)
chats      400 conversations, think times uniform, 1 in 5 ends at each turn
scans      the same among prompts that never come again (1 request in 3, most of the blocks)
agents     up to 24 loops, each of its own fast, fixed pace, long chains, then gone; one-off prompts between
phases     documents whose popularity changes at once, every sixth of the trace
cycle      500 prompts in the same order again and again: LRU hits nothing until all fit
uniform    3000 prompts, independent and alike: nothing can be learned
recency    what was used last is used next, by a geometric law: LRU is right
"""
import json
import random
import sys

KINDS = ("documents", "chats", "scans", "agents", "phases", "cycle", "uniform", "recency")


class Trace:
    def __init__(self, kind, uses, out):
        self.out = out
        self.rng = random.Random(20240 + KINDS.index(kind))
        self.left = uses
        self.next = 1

    def below(self, n):
        return int(self.rng.random() * n)

    def fresh(self, n):
        first = self.next
        self.next += n
        return list(range(first, first + n))

    def ask(self, ids):
        line = {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        self.out.write(json.dumps(line) + "\n")
        self.left -= len(ids)


def documents(t):
    docs = [t.fresh(3 + t.below(40)) for _ in range(2000)]
    weights = [(i + 1) ** -0.9 for i in range(len(docs))]
    while t.left > 0:
        doc = t.rng.choices(docs, weights)[0]
        t.ask([0] + doc + t.fresh(2))


def chats(t, scans=False):
    n = 400
    talk = [[] for _ in range(n)]
    ready = [0] * n
    now = 0
    while t.left > 0:
        now += 1
        i = t.below(n)
        if scans and t.below(3) == 0:
            t.ask([0] + t.fresh(20 + t.below(150)))
            continue
        if talk[i] and now < ready[i]:
            continue
        if not talk[i] or t.below(5) == 0:
            talk[i] = [0]
        talk[i] = talk[i] + t.fresh(1 + t.below(4))
        ready[i] = now + n // 2 + t.below(n)
        t.ask(talk[i])


def agents(t):
    n = 24
    chain = [[] for _ in range(n)]
    turns, due, pace = [0] * n, [0] * n, [1] * n
    now = 0
    while t.left > 0:
        now += 1
        for i in range(n):
            if turns[i] == 0 and t.below(50) == 0:
                chain[i] = [0] + t.fresh(8)
                turns[i], pace[i], due[i] = 5 + t.below(60), 2 + t.below(40), now
            elif turns[i] > 0 and now >= due[i]:
                chain[i] = chain[i] + t.fresh(1 + t.below(2))
                turns[i] -= 1
                due[i] = now + pace[i]
                t.ask(chain[i])
        if t.below(3) == 0:
            t.ask([0] + t.fresh(5 + t.below(50)))


def phases(t):
    all_uses = t.left
    phase = 7
    while t.left > 0:
        if 6 * t.left // all_uses < phase:
            phase = 6 * t.left // all_uses
            docs = [t.fresh(20 + i % 20) for i in range(200)]
        t.ask([0] + docs[int(t.rng.random() ** 2 * 200)] + t.fresh(1))


def cycle(t):
    docs = [t.fresh(20) for _ in range(500)]
    i = 0
    while t.left > 0:
        t.ask(docs[i % 500])
        i += 1


def uniform(t):
    docs = [t.fresh(5) for _ in range(3000)]
    while t.left > 0:
        t.ask([0] + docs[t.below(3000)])


def recency(t):
    history = []
    while t.left > 0:
        back = int(t.rng.expovariate(1 / 60)) if t.rng.random() < 0.7 else len(history)
        doc = history[-1 - back] if back < len(history) else t.fresh(12)
        history.append(doc)
        t.ask([0] + doc)


def write(kind, uses, out):
    make = {"documents": documents, "chats": chats, "scans": lambda t: chats(t, True), "agents": agents,
            "phases": phases, "cycle": cycle, "uniform": uniform, "recency": recency}
    make[kind](Trace(kind, uses, out))


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), sys.stdout)
