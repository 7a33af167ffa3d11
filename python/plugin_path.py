"""Where the built plug-in lies."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "libggml-locks.so"


def find_plugin():
    """The plug-in in LOCKS_BUILD_DIR, or else in the folder that `make` builds in; FileNotFoundError says where it was
    looked for."""
    folder = Path(os.environ.get("LOCKS_BUILD_DIR") or ROOT / "build" / "release")
    found = sorted(folder.rglob(NAME))
    if not found:
        raise FileNotFoundError(f"no {NAME} in {folder}; build it with make")
    return found[0]
