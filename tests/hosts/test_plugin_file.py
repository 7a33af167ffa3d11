"""What the built plug-in needs from a system, and what it shows to its host."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("LOCKS_BUILD_DIR") or Path(__file__).resolve().parents[2] / "build" / "release")
PLUGIN = BUILD / "libggml-locks.so"
EXPORTS = {
    "ggml_backend_init",
    "ggml_backend_score",
    "locks_cb_eval",
    "locks_llamacpp_statistics",
    "locks_llamacpp_reset_statistics",
}

pytestmark = pytest.mark.skipif(shutil.which("nm") is None or not PLUGIN.exists(), reason="no nm, or no plug-in built")


def dynamic_symbols(*options):
    listing = subprocess.run(["nm", "-D", *options, str(PLUGIN)], capture_output=True, text=True, check=True).stdout
    return [line.split() for line in listing.splitlines()]


def test_needs_only_old_symbols_of_glibc():
    newest = (2, 34)
    for *_, name in dynamic_symbols("--undefined-only"):
        version = re.search(r"@GLIBC_(\d+)\.(\d+)", name)
        if version:
            assert (int(version[1]), int(version[2])) <= newest, name


def test_needs_only_libraries_of_glibc():
    headers = subprocess.run(["objdump", "-p", str(PLUGIN)], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"NEEDED\s+(\S+)", headers):
        assert re.fullmatch(r"lib(c|m|dl|pthread)\.so\.\d+|ld-linux-x86-64\.so\.2", library), library


def test_links_no_symbol_of_ggml():
    assert not [name for *_, name in dynamic_symbols("--undefined-only") if name.startswith(("ggml", "gguf", "llama"))]


def test_shows_only_its_entry_points():
    functions = {name for *_, kind, name in dynamic_symbols("--defined-only") if kind == "T"}
    assert functions == EXPORTS
