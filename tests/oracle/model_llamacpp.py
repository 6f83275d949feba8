# SPDX-License-Identifier: MIT
"""model_llamacpp.py LIBRARY GOLDEN MODEL: logits of a real model against recorded ones of llama.cpp.

Teacher-forced along the recorded ids. llama.cpp rounds activations to 8 bits in its products and
differs from itself by up to 0.9 between its own settings (f16 and f32 caches), so: the most probable
token must agree wherever its recorded lead exceeds 1.0, and the ten greatest logits of the first
step must lie within 1.0. model_numpy.py is the strict test."""
import json
import sys

import engine_lib

LEAD = 1.0
NEAR = 1.0


def check(engine, case, number):
    prompt, ids = case["prompt"], case["ids"]
    rows = engine.logits(prompt + ids[:-1], len(prompt) - 1)
    assert len(rows) == len(ids)
    best = rows.argmax(axis=1)
    clear = [i for i in range(len(ids)) if case["gap"][i] > LEAD]
    wrong = [i for i in clear if best[i] != ids[i]]
    worst = max(abs(float(rows[0][t]) - x) for t, x in case["top10"])
    same = sum(int(best[i] == ids[i]) for i in range(len(ids)))
    ok = not wrong and worst <= NEAR
    print("%s %d - %d prompt tokens; %d of %d steps agree, %d of %d clear ones; top ten within %.3f"
          % ("ok" if ok else "not ok", number, len(prompt), same, len(ids),
             len(clear) - len(wrong), len(clear), worst))
    for i in wrong:
        print("# step %d: we pick %d, recorded %d with a lead of %.3f"
              % (i, best[i], ids[i], case["gap"][i]))
    return ok


def main():
    library, golden, model = sys.argv[1:]
    with open(golden) as f:
        cases, path = engine_lib.cases(json.load(f), model)
    engine = engine_lib.Engine(library, path)
    print("1..%d" % len(cases))
    good = [check(engine, case, i + 1) for i, case in enumerate(cases)]
    engine.close()
    return 0 if len(good) == 6 and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
