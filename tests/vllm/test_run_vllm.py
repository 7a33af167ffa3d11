"""tests/vllm/run in an environment that is there, played with a stand-in for its Python."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Writes what pytest would, and what it was told.
PYTHON = """#!/bin/sh
echo "$LD_LIBRARY_PATH $*" >"$0.asked"
for argument; do
  case "$argument" in --junitxml=*) echo '<testsuite><testcase classname="a" name="b"/></testsuite>' >"${argument#*=}" ;; esac
done
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tests/vllm/run needs Python 3.11")
def test_the_environment_is_taken_as_it_is(tmp_path):
    (tmp_path / "build").mkdir()
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / "venv" / "library_path").write_text("/toolkit/lib\n")
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "vllm" / "run", tmp_path / "build", "--python", python, "-k", "one or two"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
    asked = python.with_name("python.asked").read_text()
    assert asked.startswith("/toolkit/lib") and " -m pytest " in asked and " -k one or two " in asked
