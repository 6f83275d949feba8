# SPDX-License-Identifier: MIT
"""bench_quality.py: what plans cost in quality, on two real models and one public text.

    make bench B=quality [CSV=FILE]
    python3 bench/bench_quality.py --kvstate EXE [--csv FILE] [--dir DIR] [--models smollm2,gemma3]

For each model: perplexity, divergence and bytes of the uniform plans of the README; `kvstate tune` at
4.5 bits a value; `kvstate tune --max-kl q4`, the fewest bytes that diverge no more than uniform q4.
tune chooses by the first windows of the text, and its figures are of the ones after them; both plans are
measured once more on 4 windows from byte 100000 on. Figures do not depend on the machine. Plans, sensitivities, plots and JSON are kept in DIR, and what is there
already is not computed again. Half an hour of CPU time for both models."""
import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT_SHA256 = "89dba06600463ed858b4ccd3bdf4e72452c512589f1029548346e5284eb71374"
PLANS = ["f16", "q8", "q6", "q5", "q4:32", "q4", "q3", "c8", "c6", "c5", "c4", "c3", "affine4", "k8v4"]
# window and number of windows of the uniform plans (SmolLM2's are those of llama.cpp's figures); windows
# that tune chooses by and is checked with, 512 tokens each
MODELS = {"smollm2": (2048, 2, 3, 4), "gemma3": (512, 4, 3, 4)}


def run(*args, **more):
    return subprocess.run(args, check=True, **more)


def policy_text(folder):
    """The text of Debian package debian-policy 4.6.2.0, which apt fetches."""
    path = folder / "policy.txt"
    if not path.exists():
        with tempfile.TemporaryDirectory() as tmp:
            run("apt-get", "-q", "download", "debian-policy", cwd=tmp, stdout=subprocess.DEVNULL)
            deb = next(pathlib.Path(tmp).glob("*.deb"))
            run("dpkg", "-x", deb, tmp)
            gz = pathlib.Path(tmp, "usr/share/doc/debian-policy/policy.txt.gz")
            path.write_bytes(run("gzip", "-dc", gz, stdout=subprocess.PIPE).stdout)
    if hashlib.sha256(path.read_bytes()).hexdigest() != TEXT_SHA256:
        sys.exit(f"{path} is not the text of debian-policy 4.6.2.0; its figures would be others")
    return path


def answer(folder, name, command):
    """The JSON that a command prints, kept in a file."""
    path = folder / (name + ".json")
    if not path.exists():
        out = run(*map(str, command), stdout=subprocess.PIPE).stdout
        path.write_bytes(out)
    return json.loads(path.read_text())


def measure(args, text, model):
    """What tune says at 4.5 bits, what it says of q4's divergence, and the uniform plans."""
    window, chunks, choose, check = MODELS[model]
    path = run("sh", ROOT / "scripts/fetch-model.sh", model, stdout=subprocess.PIPE, text=True).stdout.strip()
    common = ["-m", path, "-f", text, "--json"]
    tune = [args.kvstate, "tune", *common, "-c", 512, "--chunks", choose + check, "--check", check,
            "--sensitivity", args.dir / f"{model}.sensitivity"]
    at_budget = answer(args.dir, f"{model}-tune-4.5",
                       [*tune, "--budget", 4.5, "--out", args.dir / f"{model}-4.5.plan",
                        "--svg", args.dir / f"kl-{model}.svg"])
    as_q4 = answer(args.dir, f"{model}-tune-as-q4",
                   [*tune, "--max-kl", "q4", "--out", args.dir / f"{model}-as-q4.plan"])
    plans = answer(args.dir, f"{model}-plans",
                   [args.kvstate, "perplexity", *common, "-c", window, "--chunks", chunks, "--kl",
                    "--kv", ",".join(PLANS), "--svg", args.dir / f"perplexity-{model}.svg"])
    tail = args.dir / "tail.txt"
    tail.write_bytes(text.read_bytes()[100000:])
    other = answer(args.dir, f"{model}-tail",
                   [args.kvstate, "perplexity", "-m", path, "-f", tail, "--json", "-c", 512, "--chunks", 4, "--kl", "--kv",
                    f"q4,c4,layers:{args.dir / model}-4.5.plan,layers:{args.dir / model}-as-q4.plan"])
    for row in other["plans"]:
        row["kv"] = "tuned" + row["kv"].rsplit(model, 1)[1][:-5] if row["kv"].startswith("layers") else row["kv"]
    return at_budget, as_q4, plans, other


def bars(model, at_budget, as_q4, plans, other):
    """(what, value, limit): holds where value <= limit."""
    loss = {row["kv"]: row["perplexity"] / plans["base_perplexity"] - 1 for row in plans["plans"]}
    yield "tuned at 4.5 bits a value: KL over that of q4", at_budget["kl_ratio"], 0.6
    yield "fewest bytes with the KL of q4: bytes over those of q4", 1 - as_q4["saved"], 0.85
    yield "its KL over that of q4 on windows that chose nothing", as_q4["kl_ratio"], 1.0
    kl = {row["kv"]: row["kl_mean"] for row in other["plans"]}
    yield "tuned at 4.5 bits: KL over that of q4 on other text", kl["tuned-4.5"] / kl["q4"], 0.6
    yield "fewest bytes: KL over that of q4 on other text", kl["tuned-as-q4"] / kl["q4"], 1.0
    yield "q8: perplexity over dense - 1", loss["q8"], 0.001
    for kv in ("q4", "q4:32", "c4") if model == "smollm2" else ():
        yield f"{kv}: perplexity over dense - 1", loss[kv], 0.025


def csv_lines(model, at_budget, as_q4, plans, other):
    for name, tuned in (("budget 4.5", at_budget), ("max-kl q4", as_q4)):
        for kv in ("tuned", "q4", "c4"):
            case = f"{model}/tune {name}/{kv}"
            yield f"{case}/size", tuned[kv]["bits"], "bits a value"
            yield f"{case}/kl", tuned[kv]["kl"], "nats"
            yield f"{case}/kl_error", tuned[kv]["kl_error"], "nats"
            yield f"{case}/perplexity", tuned[kv]["perplexity"], ""
        yield f"{model}/tune {name}/f32/perplexity", tuned["dense"]["perplexity"], ""
    yield f"{model}/f32/perplexity", plans["base_perplexity"], ""
    yield f"{model}/other text/f32/perplexity", other["base_perplexity"], ""
    for case, row in [(f"{model}/{r['kv']}", r) for r in plans["plans"]] + \
            [(f"{model}/other text/{r['kv']}", r) for r in other["plans"]]:
        yield f"{case}/size", row["bytes_per_token"], "bytes a token"
        yield f"{case}/perplexity", row["perplexity"], ""
        yield f"{case}/kl", row["kl_mean"], "nats"
        yield f"{case}/kl_99", row["kl_99"], "nats"
        yield f"{case}/same_top", row["same_top"], ""


def print_plans(model, plans):
    dense = plans["base_perplexity"]
    print(f"\n{model}, {plans['chunks']} windows of {plans['window']} tokens, {plans['scored']} scored; dense "
          f"{dense:.4f}\n\n| plan | bytes a token | perplexity | over dense | KL | KL 99 % | same top token |\n"
          "| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in plans["plans"]:
        print(f"| {row['kv']} | {row['bytes_per_token']} | {row['perplexity']:.4f} | "
              f"{100 * (row['perplexity'] / dense - 1):+.2f} % | {row['kl_mean']:.5f} | {row['kl_99']:.4f} | "
              f"{100 * row['same_top']:.1f} % |")


def print_bars(model, found):
    print(f"\n{model}: tune chose by {found[0]['probe_chunks']} windows of {found[0]['window']} tokens and was "
          f"checked with the {found[0]['check_chunks']} after them\n\n| bar | measured | at most | |\n"
          "| --- | ---: | ---: | --- |")
    for what, value, limit in bars(model, *found):
        print(f"| {what} | {value:.4f} | {limit} | {'holds' if value <= limit else 'missed'} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kvstate", default=ROOT / "build/release/kvstate", type=pathlib.Path)
    p.add_argument("--csv", help="lines are appended to it")
    p.add_argument("--dir", default=ROOT / "build/quality", type=pathlib.Path)
    p.add_argument("--models", default="smollm2,gemma3")
    args = p.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    args.dir = pathlib.Path(os.path.relpath(args.dir))  # a name in a list of plans has its limit
    text = policy_text(args.dir)
    lines = []
    for model in args.models.split(","):
        found = measure(args, text, model)
        print_plans(model, found[2])
        print_plans(f"{model} from byte 100000 on", found[3])
        print_bars(model, found)
        lines += [f"quality,{model}/bar/{what},{value:.6g},,{limit},{value / limit:.3f}"
                  for what, value, limit in bars(model, *found)]
        lines += [f"quality,{case},{value:.8g},{unit},," for case, value, unit in csv_lines(model, *found)]
    if args.csv:
        path = pathlib.Path(args.csv)
        head = "" if path.exists() else "bench,case,value,unit,limit,ratio\n"
        with path.open("a") as f:
            f.write(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
