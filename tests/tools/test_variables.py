"""Whoever builds, tests or measures here also loads the plug-in, which refuses LOCKS_ variables that it does not know."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Reads in Python (environ["X"], environ.get("X")), in shell ($X, ${X), and in cli (variable("X")).
READ = re.compile(r"""(?:environ(?:\.get\()?[\[]?["']|\$\{?|variable\(")(LOCKS_[A-Z_]+)""")


def test_the_plug_in_knows_every_variable_that_the_scripts_read():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    scripts = [name for name in tracked if name.endswith((".py", ".sh", "/run")) or name.startswith("cli/")]
    read = {variable for name in scripts for variable in READ.findall((ROOT / name).read_text(encoding="utf-8"))}
    assert {"LOCKS_BUILD_DIR", "LOCKS_EVALS", "LOCKS_PYTHON", "LOCKS_TEST_DATA"} <= read

    settings = (ROOT / "hosts" / "llamacpp" / "settings.cc").read_text(encoding="utf-8")
    known = set(re.findall(r'"(LOCKS_[A-Z_]+)"', settings))
    assert {name for name in read if not name.startswith("LOCKS_TEST_")} <= known
