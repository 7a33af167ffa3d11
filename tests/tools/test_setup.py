"""tools/setup.sh on machines that lack something, played with stand-ins for the package tools."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    """A tree with a two-line package list, a finished .venv, and a folder for stand-ins that comes first in PATH."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "setup.sh", tmp_path / "tools")
    (tmp_path / "packages-debian.txt").write_text("# what is needed\nnot-there-yet\nextra optional\n")
    (tmp_path / "requirements.txt").write_text("")
    (tmp_path / "requirements-model.txt").write_text("")
    (tmp_path / "requirements-vllm.txt").write_text("of another environment")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(shutil.which("python3"))
    stamp = subprocess.run("cat requirements.txt requirements-model.txt | sha256sum | cut -c 1-16", shell=True, cwd=tmp_path, capture_output=True, text=True)
    (tmp_path / ".venv" / f".installed-{stamp.stdout.strip()}").touch()
    (tmp_path / "stand-ins").mkdir()
    return tmp_path


def stand_in(tree: Path, name: str, script: str) -> None:
    path = tree / "stand-ins" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def setup(tree: Path) -> subprocess.CompletedProcess:
    path = f"{tree / 'stand-ins'}:{os.environ['PATH']}"
    return subprocess.run([tree / "tools" / "setup.sh"], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)


def test_says_and_takes_nothing_if_all_is_there(tree):
    stand_in(tree, "dpkg-query", "echo 'ii  not-there-yet'")
    stand_in(tree, "apt-get", "echo called >> apt-calls")
    start = time.monotonic()
    run = setup(tree)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert time.monotonic() - start < 1
    assert not (tree / "apt-calls").exists()


def test_installs_what_is_missing_and_goes_on_without_what_is_optional(tree):
    stand_in(tree, "dpkg-query", "exit 1")
    stand_in(tree, "sudo", 'while [ "$1" = -n ]; do shift; done; exec "$@"')
    stand_in(tree, "apt-get", 'echo "$*" >> apt-calls; case "$*" in *extra*) exit 100;; esac')
    run = setup(tree)
    assert run.returncode == 0, run.stderr
    calls = (tree / "apt-calls").read_text()
    assert "update" in calls and "install -y --no-install-recommends not-there-yet" in calls
    assert "going on without extra" in run.stderr


def test_says_what_is_missing_if_it_cannot_install(tree):
    stand_in(tree, "dpkg-query", "exit 1")
    stand_in(tree, "sudo", "exit 1")
    stand_in(tree, "apt-get", "exit 100")
    run = setup(tree)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == "setup: cannot install system packages. As root: apt-get install not-there-yet"


def test_refuses_an_old_python(tree):
    shutil.rmtree(tree / ".venv")
    stand_in(tree, "dpkg-query", "echo 'ii  not-there-yet'")
    stand_in(tree, "old-python", "exit 1")
    run = subprocess.run(
        [tree / "tools" / "setup.sh"],
        env={**os.environ, "PATH": f"{tree / 'stand-ins'}:{os.environ['PATH']}", "LOCKS_PYTHON": "old-python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "LOCKS_PYTHON=old-python does not run as Python 3.10 or later" in run.stderr
