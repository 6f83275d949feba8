# SPDX-License-Identifier: MIT
"""warm.py KVSTATE tiny TINY_MODEL | warm.py KVSTATE MODEL.gguf: saved state through the program: a second
run starts warm and answers the same; trouble with the directory is told and never fails a run; a run
that was killed goes on with the same tokens (real models: tiny ones are done too soon)."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import models

SIZE = ("-n", "24", "--seed", "7")


class Checks:
    n = bad = 0

    def __call__(self, what, good, detail=""):
        self.n += 1
        self.bad += not good
        print("%s %d - %s%s" % ("ok" if good else "not ok", self.n, what, "" if good else "\n# %s" % (detail,)))
        sys.stdout.flush()


check = Checks()


class Program:
    def __init__(self, kvstate, model, prompt):
        self.command = [kvstate, "run", "-m", model, "-p", prompt]

    def run(self, *options, wrap=None):
        command = (wrap or []) + self.command + list(options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        self.err = done.stderr
        return done

    def json(self, *options):
        done = self.run("--json", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def same(a, b):
    return all(a[k] == b[k] for k in ("text", "finish", "tokens", "prompt_tokens"))


def modes(top):
    wrong = []
    for folder, _, files in os.walk(top):
        if os.stat(folder).st_mode & 0o777 != 0o700:
            wrong.append(folder)
        wrong += [f for f in files if os.stat(os.path.join(folder, f)).st_mode & 0o777 != 0o600]
    return wrong


def first_and_second(p, folder, plans, computed=1):
    """computed: tokens of an equal prompt that are computed again; 8 where layers are recurrent"""
    for plan in plans:
        d = os.path.join(folder, "plan" + str(plans.index(plan)))
        cold = p.json("--no-cache", *SIZE, *plan)
        check("no cache, no directory %s" % plan, not os.path.exists(d) and cold["reused"] == 0)
        a = p.json("--cache-dir", d, *SIZE, *plan)
        check("first run is cold %s" % plan, same(a, cold) and a["reused"] == 0, a)
        b = p.json("--cache-dir", d, *SIZE, *plan)
        check("second run is warm %s" % plan,
              same(b, cold) and b["reused"] == b["prompt_tokens"] - computed and b["reused_from"] == "disk", b)
        check("private %s" % plan, not modes(d), modes(d))


def other_plan(p, folder):
    d = os.path.join(folder, "plan0")
    r = p.json("--cache-dir", d, "--kv", "q6", *SIZE)
    check("another plan is a miss", r["reused"] == 0 and "another model, plan" in r["cache_reason"], r)
    r = p.run("--cache-dir", d, *SIZE)
    check("the tier is told", re.search(r"reused \d+ tokens from disk", r.stderr), r.stderr)


def draft_model(p, folder):
    """The model as its own drafter: both come back, and the drafts are those of a cold one."""
    for plan in ((), ("--kv", "f32", "--kv-block", "16")):
        d = os.path.join(folder, "draft%d" % len(plan))
        how = ("--draft", p.command[3], "--cache-dir", d, *plan, *SIZE)
        cold = p.json("--no-cache", *plan, *SIZE)
        a = p.json(*how)
        check("a drafter's first run is cold %s" % (plan,),
              same(a, cold) and a["draft_reused"] == 0 and a["draft_computed"] > a["prompt_tokens"], a)
        b = p.json(*how)
        check("its second is warm %s" % (plan,),
              same(b, cold) and b["draft_reused"] >= b["prompt_tokens"] - 8 and b["draft_reused_from"] == "disk"
              and (b["drafts"], b["accepted"]) == (a["drafts"], a["accepted"]), (a, b))
        p.run(*how)
        check("and told %s" % (plan,), re.search(r"draft model: \d+ tokens reused from disk", p.err), p.err)
    r = p.json("--draft", p.command[3], "--cache-dir", d, *SIZE)
    check("another plan's drafter is a miss", same(r, p.json("--no-cache", *SIZE)) and r["draft_reused"] == 0, r)


def defaults(p, folder):
    home = os.path.join(folder, "home")
    os.mkdir(home)
    env = dict(os.environ, HOME=home)
    env.pop("XDG_CACHE_HOME", None)
    subprocess.run(p.command + list(SIZE), env=env, capture_output=True, check=True)
    check("default directory", os.path.isdir(os.path.join(home, ".cache/kvstate/state/entries")))
    env["XDG_CACHE_HOME"] = os.path.join(folder, "xdg")
    subprocess.run(p.command + list(SIZE), env=env, capture_output=True, check=True)
    check("XDG_CACHE_HOME", os.path.isdir(os.path.join(folder, "xdg/kvstate/state/entries")))


def trouble(p, folder):
    cold = p.json("--no-cache", *SIZE)
    name = os.path.join(folder, "file")
    with open(name, "w", encoding="ascii") as f:
        f.write("x")
    r = p.json("--cache-dir", name, *SIZE)
    check("a file as directory", same(r, cold) and "state is not saved" in p.err, p.err)
    r = p.json("--cache-dir", "/proc/none", *SIZE)
    check("a directory that can't be made", same(r, cold) and "state is not saved" in p.err, p.err)
    d = os.path.join(folder, "full")
    small = ["sh", "-c", "trap '' XFSZ; ulimit -f 4; exec \"$@\"", "sh"]
    r = p.run("--json", "--cache-dir", d, *SIZE, wrap=small)
    full = r.returncode == 0 and same(json.loads(r.stdout), cold) and "was not saved" in r.stderr
    check("files can't grow", full, r)
    r = p.json("--cache-dir", d, *SIZE)
    check("and later can", same(r, cold))


def damage(p, folder):
    cold = p.json("--no-cache", *SIZE)
    d = os.path.join(folder, "damage")
    p.json("--cache-dir", d, *SIZE)
    for kind in ("blocks", "entries"):
        for name in os.listdir(os.path.join(d, kind)):
            with open(os.path.join(d, kind, name), "r+b") as f:
                f.seek(400)
                byte = f.read(1)
                f.seek(400)
                f.write(bytes([byte[0] ^ 1]))
        r = p.json("--cache-dir", d, *SIZE)
        check("damaged %s are set aside" % kind,
              same(r, cold) and r["reused"] == 0 and os.listdir(os.path.join(d, "quarantine")), r)
        r = p.json("--cache-dir", d, *SIZE)
        check("and saved anew after damaged %s" % kind, same(r, cold) and r["reused"] > 0, r)


def two(p, folder):
    cold = p.json("--no-cache", *SIZE)
    d = os.path.join(folder, "two")
    p.json("--cache-dir", d, *SIZE)
    chat = [p.command[0], "chat"] + p.command[2:4] + ["--cache-dir", d, "--json", "-n", "4", "--chat-template", "chatml"]
    with subprocess.Popen(chat, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as other:
        other.stdin.write("hello\n")
        other.stdin.flush()
        other.stdout.readline()
        r = p.json("--cache-dir", d, *SIZE)
        check("beside another process", same(r, cold) and r["reused"] > 0 and "only read" in p.err, (r, p.err))
        other.stdin.close()
    check("whose end is in order", other.returncode == 0)


def limit(p, folder):
    d = os.path.join(folder, "limit")
    for i in range(6):
        p.command[-1] = ("%d" % i) * 3 + p.command[-1][3:]
        p.json("--cache-dir", d, "--cache-disk", "1", *SIZE)
    size = sum(os.path.getsize(os.path.join(a, f)) for a, _, names in os.walk(d) for f in names)
    check("the limit of bytes is kept", size <= 1 << 20, size)


def chat_again(p, folder, model):
    d = os.path.join(folder, "chat")
    command = [p.command[0], "chat", "-m", model, "--json", "--temp", "0", "-n", "20", "--cache-dir", d]
    talk = os.path.join(folder, "talk.json")
    text = "Tell me about memory, trains, colours and numbers, please. " * 3
    a = subprocess.run(command, input="%s\nand more\n/save %s\n" % (text, talk), capture_output=True, text=True,
                       check=True)
    b = subprocess.run(command, input="/load %s\nand then?\n" % talk, capture_output=True, text=True, check=True)
    turns = [json.loads(x) for x in a.stdout.splitlines()]
    last = json.loads(b.stdout.splitlines()[-1])
    held = turns[-1]["prompt_tokens"] + turns[-1]["answer_tokens"]
    check("a loaded conversation is warm", last["reused_from"] == "disk" and last["reused"] >= held - 2,
          (held, last, b.stderr))


def killed(p, folder):
    options = ("-n", "160", "--temp", "1", "--seed", "11")
    whole = p.run("--no-cache", *options).stdout
    d = os.path.join(folder, "kill")
    resumed = 0
    for i in range(6):
        with subprocess.Popen(p.command + ["--cache-dir", d] + list(options), stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as child:
            child.stdout.read(1)
            time.sleep(0.4 + 0.23 * i)
            os.kill(child.pid, signal.SIGKILL)
            got = child.stdout.read()
        r = p.run("--cache-dir", d, *options)
        resumed += "going on with an answer" in r.stderr
        check("killed, then the same answer (%d)" % i,
              r.returncode == 0 and r.stdout == whole and whole.encode()[1:].startswith(got[:-1]), r)
        again = p.run("--cache-dir", d, *options)
        check("a complete answer is not gone on with", "going on with" not in again.stderr and again.stdout == whole,
              again.stderr)
        shutil.rmtree(d)
    check("answers were gone on with", resumed >= 3, resumed)
    with subprocess.Popen(p.command + ["--cache-dir", d, "-n", "700"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as child:  # the seed was not given: it is kept
        child.stdout.read(1)
        time.sleep(0.8)
        os.kill(child.pid, signal.SIGKILL)
        got = child.stdout.read()
    r = p.run("--cache-dir", d, "-n", "700")
    check("a drawn seed is kept", r.stdout.encode()[1:].startswith(got[:-1]) and "going on" in r.stderr, r)


def main():
    kvstate, what = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        if what == "tiny":
            for arch in ("llama", "gemma3"):
                model = os.path.join(folder, arch + ".gguf")
                subprocess.run([sys.argv[3], arch, model], check=True)
                p = Program(kvstate, model, "This is a text that is long enough to be saved: " + "abc def " * 9)
                here = os.path.join(folder, arch)
                os.mkdir(here)
                first_and_second(p, here, [[], ["--kv", "f32"], ["--window", "48", "--sinks", "4"],
                                           ["--kv-block", "16"]])
                draft_model(p, here)
                defaults(p, here)
                trouble(p, here)
                damage(p, here)
                two(p, here)
                limit(p, here)
            text = "This is a text that is long enough to be saved: " + "abc def " * 9
            for arch, plans, computed in (("llama", [["--kv", "c4"], ["--kv", "c3", "--kv-block", "16"]], 1),
                                          ("gemma3", [["--kv", "c4"]], 1),
                                          ("qwen3next", [[], ["--kv", "c4"], ["--undo", "0"]], 8),
                                          ("mamba2", [[], ["--undo", "0", "--cache-ram", "1"]], 8)):
                model = os.path.join(folder, arch + "-wide.gguf")
                subprocess.run([sys.argv[3], arch, model, "wide"], check=True)
                here = os.path.join(folder, arch + "-wide")
                os.mkdir(here)
                p = Program(kvstate, model, text)
                first_and_second(p, here, plans, computed)
                damage(p, here)
        else:
            model = models.find(what)
            if not model:
                return 77
            p = Program(kvstate, model, "Memory is what remains of the past. " * 40)
            first_and_second(p, folder, [[], ["--kv", "q8"], ["--kv", "q4", "--window", "100", "--sinks", "4"],
                                         ["--kv", "k8v4", "--kv-block", "32"]])
            other_plan(p, folder)
            draft_model(p, folder)
            chat_again(p, folder, model)
            killed(p, folder)
    print("1..%d" % check.n)
    return 1 if check.bad else 0


if __name__ == "__main__":
    sys.exit(main())
