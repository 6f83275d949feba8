# SPDX-License-Identifier: MIT
"""chat_model.py KVSTATE MODEL: a conversation of four turns computes the new tokens of each turn and
nothing else, for several plans, also with a wrapped window; the ids that the chat keeps are those
that its file holds; undo and load recompute what they must and say so."""
import json
import os
import subprocess
import sys
import tempfile

import models

TURNS = ["My name is Ada and I like trains. What is a train?", "Name two colours, please. \U0001f682",
         "  And what is two plus two?  ", "Thank you, good bye."]
PLANS = [[], ["--window", "48", "-b", "16"], ["--kv", "q8"], ["--kv", "q4", "--window", "48", "-b", "16"]]

os.environ["KVSTATE_NO_CACHE"] = "1"  # what is saved has tests of its own


class Talk:
    def __init__(self, kvstate, model, options):
        self.command = [kvstate, "chat", "-m", model, "--json", "--temp", "0", "-n", "40"] + options

    def run(self, lines):
        done = subprocess.run(self.command, input="\n".join(lines) + "\n", capture_output=True, text=True,
                              timeout=500, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def check(what, good, detail=""):
    check.n += 1
    check.bad += not good
    print("%s %d - %s %s" % ("ok" if good else "not ok", check.n, what, detail if not good else ""))


check.n = check.bad = 0


def four_turns(talk, name):
    turns, _ = talk.run(TURNS + ["/stats"])
    stats = turns.pop()["stats"]
    held = 0
    good = len(turns) == 4
    for i, t in enumerate(turns):
        # what the session held when the turn began, all of it, is reused
        good = good and t["exact"] and t["recomputed"] == 0 and t["held"] == t["reused"]
        # the last token of an answer that was cut off was never computed
        late = 1 if i and turns[i - 1]["finish"] == "length" else 0
        good = good and t["computed"] == t["new"] + late and t["kept"] == (held + late if i else 0)
        good = good and t["prompt_tokens"] == t["kept"] + t["new"]
        held = t["prompt_tokens"] + t["answer_tokens"] - (1 if t["finish"] == "length" else 0)
    check("%s: each turn computes its new tokens only" % name, good, repr(turns))
    check("%s: totals" % name, stats["recomputed"] == 0 and stats["computed"] == sum(
        t["computed"] for t in turns) and stats["turns"] == 4, repr(stats))
    return turns


def main():
    kvstate, name = sys.argv[1:]
    model = models.find(name)
    if not model:
        return 77
    for plan in PLANS:
        turns = four_turns(Talk(kvstate, model, plan), " ".join(plan) or "f16")
        if "--window" in plan:
            check("the window wrapped", turns[-1]["prompt_tokens"] > 2 * 48)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "talk.json")
        talk = Talk(kvstate, model, [])
        turns, _ = talk.run(TURNS[:3] + ["/save " + path] + TURNS[3:])
        saved = json.load(open(path))
        last = saved["turns"][-1]
        check("the file holds the exact ids", last["ids"] == len(saved["ids"]) == turns[2]["prompt_tokens"]
              + turns[2]["answer_tokens"] and last["prompt_ids"] == turns[2]["prompt_tokens"])
        check("the file is its owner's", os.stat(path).st_mode & 0o777 == 0o600)
        again, _ = talk.run(["/load " + path] + TURNS[3:])
        check("a loaded conversation goes on as it would have", again[0]["text"] == turns[3]["text"] and
              again[0]["prompt_tokens"] == turns[3]["prompt_tokens"] and again[0]["exact"], repr(again))
        # the same ids from nothing give the same answer: what was reused was right
        undone, _ = talk.run(TURNS[:3] + [TURNS[0], "/undo"] + TURNS[3:])
        check("undo goes back exactly", undone[4]["text"] == turns[3]["text"] and undone[4]["recomputed"] == 0
              and undone[4]["reused"] >= undone[4]["kept"] - 1, repr(undone[4]))
        ring = Talk(kvstate, model, ["--window", "48", "-b", "16"])
        undone, said = ring.run(TURNS[:3] + ["/undo", TURNS[2]])
        check("undo with a wrapped window computes again and says so", undone[3]["text"] == undone[2]["text"]
              and undone[3]["recomputed"] == undone[3]["kept"] - undone[3]["reused"] > 0
              and "window layers can't go back" in said, repr(undone[3]))
        changed, _ = talk.run(TURNS[:2] + ["/system Answer in French."] + TURNS[2:3])
        check("a new system message is counted", not changed[2]["exact"] and changed[2]["recomputed"] > 40,
              repr(changed[2]))
        cut, _ = Talk(kvstate, model, ["--chat-template", template(folder)]).run(TURNS[:3])
        check("a template that changes earlier answers: only those are made anew",
              all(not t["exact"] and t["kept"] == cut[i]["prompt_tokens"] and t["kept"] <= t["reused"] < t["held"]
                  and t["recomputed"] == max(0, t["computed"] - t["new"]) for i, t in enumerate(cut[1:])),
              repr(cut))
    print("1..%d" % check.n)
    return 1 if check.bad else 0


def template(folder):
    """One that takes the middle of earlier answers away, as some do with thinking."""
    path = os.path.join(folder, "template")
    with open(path, "w") as f:
        f.write("{{ bos_token if bos_token != '<|im_start|>' }}{% for m in messages %}[{{ m.role }}] {{ m.content[:12] ~ '...' "
                "if m.role == 'assistant' else m.content }}\n{% endfor %}"
                "{% if add_generation_prompt %}[assistant] {% endif %}")
    return path


sys.exit(main())
