"""Where the built plug-in lies."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # the source tree, or share/locks beside an installed program
NAME = "libggml-locks.so"


def is_source_tree():
    return (ROOT / "CMakeLists.txt").is_file()


def find_plugin():
    """The plug-in in LOCKS_BUILD_DIR, or else in the folder that `make` builds in, or else the one that was installed with
    this file; FileNotFoundError says where it was looked for."""
    named = os.environ.get("LOCKS_BUILD_DIR")
    if not named and not is_source_tree():
        return _installed(ROOT.parent.parent)
    folder = Path(named or ROOT / "build" / "release")
    found = sorted(folder.rglob(NAME))
    if not found:
        raise FileNotFoundError(f"no {NAME} in {folder}; build it with make")
    return found[0]


def _installed(prefix):
    """Distributions differ in the name: lib, lib64, lib/x86_64-linux-gnu."""
    found = [*sorted(prefix.glob(f"lib*/{NAME}")), *sorted(prefix.glob(f"lib/*/{NAME}"))]
    if not found:
        raise FileNotFoundError(f"no {NAME} in the library folders of {prefix}; install it, or set LOCKS_BUILD_DIR")
    return found[0]
