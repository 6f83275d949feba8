# SPDX-License-Identifier: MIT
"""Where scripts/fetch-model.sh keeps real models."""
import os


def find(name):
    """The model's path, or None once it is told that the test can't run."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = os.path.join(cache, "kvstate", "models", name)
    if os.path.exists(path):
        return path
    print("SKIP: %s is absent; scripts/fetch-model.sh gets it" % path)
    return None
