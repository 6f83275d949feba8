# SPDX-License-Identifier: MIT
"""quality_model.py KVSTATE MODEL: perplexity of SmolLM2 on the Debian policy manual, against what
llama.cpp (0c1e57098, f16 state, flash attention) computes on the same windows, and what 8 bits cost.

The text comes from the Debian package debian-policy, unpacked without being installed."""
import gzip
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import models

TEXT = "usr/share/doc/debian-policy/policy.txt.gz"
SHA256 = "89dba06600463ed858b4ccd3bdf4e72452c512589f1029548346e5284eb71374"
PEER_F16 = 4.8955


def policy(folder):
    """Path of the text, or None where it can't be had."""
    for archive in (pathlib.Path("/") / TEXT, folder / TEXT):
        if not archive.exists() and archive.is_relative_to(folder):
            got = subprocess.run(["apt-get", "download", "debian-policy"], cwd=folder,
                                 capture_output=True)
            debs = list(folder.glob("debian-policy_*.deb"))
            if got.returncode or not debs:
                return None
            subprocess.run(["dpkg", "-x", debs[0], folder], check=True)
        if archive.exists():
            text = gzip.decompress(archive.read_bytes())
            if hashlib.sha256(text).hexdigest() == SHA256:
                (folder / "policy.txt").write_bytes(text)
                return folder / "policy.txt"
    return None


def main():
    kvstate, name = sys.argv[1:]
    model = models.find(name)
    if not model:
        return 77
    with tempfile.TemporaryDirectory() as folder:
        text = policy(pathlib.Path(folder))
        if text is None:
            print("SKIP: the text of package debian-policy 4.6.2.0 can't be had")
            return 77
        got = json.loads(subprocess.run(
            [kvstate, "perplexity", "-m", model, "-f", text, "-c", "2048", "--chunks", "2", "--kv",
             "f16,q8,q4,c4", "--json", "-q"], check=True, capture_output=True).stdout)
    ppl = {p["kv"]: p["perplexity"] for p in got["plans"]}
    checks = (("scored as llama.cpp counts", got["scored"], 2046, 2046),
              ("f16 over llama.cpp's f16", ppl["f16"] / PEER_F16 - 1, -0.003, 0.003),
              ("q8 over f16", ppl["q8"] / ppl["f16"] - 1, -0.001, 0.001),
              ("q4 over f16", ppl["q4"] / ppl["f16"] - 1, 0.0, 0.06),
              ("c4 over f16", ppl["c4"] / ppl["f16"] - 1, 0.0, 0.025))
    bad = 0
    for what, value, least, most in checks:
        ok = least <= value <= most
        bad += not ok
        print("%s - %s: %.6g, wanted %g .. %g" % ("ok" if ok else "not ok", what, value, least,
                                                  most))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
