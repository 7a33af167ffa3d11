"""`locks eval` and `locks inspect`: which script they become, with which Python, and that nothing is lost on the way."""

import ast
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LOCKS_BUILD_DIR") or ROOT / "build" / "release")
PROGRAM = BUILD / "cli" / "locks"
SCRIPTS = {"eval": "run.py", "inspect": "inspect_step.py"}
# Prints what it is and what it got, each in brackets, and ends with a code that nobody else has.
RECORDER = '#!/bin/sh\nprintf "[%s]" "$0" "$@"\nexit 37\n'


def stand_in(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RECORDER)
    path.chmod(0o755)
    return path


def evals_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS.values():
        (folder / name).write_text("")
    return folder


def locks(*args, program=PROGRAM, **env) -> subprocess.CompletedProcess:
    """The program with these variables alone of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOCKS_")}
    env = {**inherited, "PYTHONDONTWRITEBYTECODE": "1", **{name: str(value) for name, value in env.items()}}
    return subprocess.run([program, *args], capture_output=True, text=True, env=env, timeout=120, check=False)


@pytest.fixture
def evals(tmp_path):
    return evals_folder(tmp_path / "tree" / "evals")


@pytest.fixture
def python(tmp_path):
    return stand_in(tmp_path / "recorder")


@pytest.fixture
def program(tmp_path):
    """A copy outside any source tree."""
    path = tmp_path / "prefix" / "bin" / "locks"
    path.parent.mkdir(parents=True)
    shutil.copy(PROGRAM, path)
    return path


def test_help_lists_both():
    overview = locks("--help").stdout
    assert "  eval " in overview and "  inspect " in overview


@pytest.mark.parametrize(("command", "script"), SCRIPTS.items())
def test_arguments_and_exit_code_are_the_scripts(evals, python, command, script):
    args = ["--help", "-h", "", "two words", "info", "--", "--config=x", "*", "--version", "eval"]
    run = locks(command, *args, LOCKS_EVALS=evals, LOCKS_PYTHON=python)
    assert run.stdout == "".join(f"[{word}]" for word in [python, evals / script, *args])
    assert run.returncode == 37 and run.stderr == ""


def test_ctrl_c_is_the_scripts(evals):
    (evals / "run.py").write_text(
        "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(41))\n"
        "print('ready', flush=True)\nsignal.pause()\n"
    )
    env = {**os.environ, "LOCKS_EVALS": str(evals), "LOCKS_PYTHON": sys.executable}
    with subprocess.Popen([PROGRAM, "eval"], stdout=subprocess.PIPE, text=True, env=env) as run:
        assert run.stdout.readline() == "ready\n"
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=60) == 41


def test_the_nearest_folder_above_the_program(tmp_path, program, python):
    far = evals_folder(tmp_path / "evals")
    assert str(far / "run.py") in locks("eval", program=program, LOCKS_PYTHON=python).stdout
    near = evals_folder(tmp_path / "prefix" / "evals")
    assert str(near / "run.py") in locks("eval", program=program, LOCKS_PYTHON=python).stdout
    installed = evals_folder(tmp_path / "prefix" / "share" / "locks" / "evals")
    assert str(installed / "run.py") in locks("eval", program=program, LOCKS_PYTHON=python).stdout
    named = evals_folder(tmp_path / "named")
    assert str(named / "run.py") in locks("eval", program=program, LOCKS_PYTHON=python, LOCKS_EVALS=named).stdout


def test_a_link_to_the_program_finds_what_is_beside_the_program(tmp_path, program, python):
    installed = evals_folder(tmp_path / "prefix" / "share" / "locks" / "evals")
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "locks"
    link.symlink_to(program)
    assert str(installed / "run.py") in locks("eval", program=link, LOCKS_PYTHON=python).stdout


def test_the_trees_own_python_comes_before_that_of_the_path(tmp_path, evals):
    on_path = stand_in(tmp_path / "path" / "python3")
    path = f"{on_path.parent}:{os.environ['PATH']}"
    link = tmp_path / "link"
    link.symlink_to(evals)
    assert locks("eval", LOCKS_EVALS=link, PATH=path).stdout == f"[{on_path}][{evals / 'run.py'}]"
    own = stand_in(evals.parent / ".venv" / "bin" / "python")
    assert locks("eval", LOCKS_EVALS=link, PATH=path).stdout == f"[{own}][{evals / 'run.py'}]"
    # A name is looked for, too.
    named = stand_in(tmp_path / "path" / "python3.99")
    run = locks("eval", LOCKS_EVALS=evals, PATH=path, LOCKS_PYTHON="python3.99")
    assert run.stdout == f"[{named}][{evals / 'run.py'}]"


def refusal(*args, **more) -> str:
    run = locks(*args, **more)
    assert run.returncode == 1 and run.stdout == "" and run.stderr.count("\n") == 1
    return run.stderr


@pytest.mark.parametrize(("command", "script"), SCRIPTS.items())
def test_a_missing_script_is_named_with_where_it_was_looked_for(tmp_path, program, python, command, script):
    text = refusal(command, program=program, LOCKS_PYTHON=python, LOCKS_EVALS=tmp_path / "none")
    assert text == f"locks {command}: no {script} in {tmp_path / 'none'}, the folder that LOCKS_EVALS names\n"
    text = refusal(command, program=program, LOCKS_PYTHON=python)
    assert text.startswith(f"locks {command}: no {script} in {tmp_path / 'prefix/share/locks/evals'}, nor ")
    assert f"evals of {tmp_path / 'prefix/bin'} or above" in text and "(make)" in text and "LOCKS_EVALS" in text


def test_a_missing_python_is_named(tmp_path, evals):
    text = refusal("eval", LOCKS_EVALS=evals, LOCKS_PYTHON=tmp_path / "none")
    assert text == f"locks eval: cannot run LOCKS_PYTHON={tmp_path / 'none'}: No such file or directory\n"
    text = refusal("eval", LOCKS_EVALS=evals, PATH=tmp_path)
    assert text.startswith("locks eval: cannot run python3 (No such file or directory), with ")
    assert f" {evals.parent}/.venv/bin/python looked for first;" in text
    assert "tools/setup.sh" in text and "LOCKS_PYTHON" in text


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("installed")
    (ROOT / "evals" / "__pycache__").mkdir(exist_ok=True)  # what must not be installed, wherever scripts ran before
    subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, capture_output=True, timeout=300)
    return prefix


def test_an_installed_program_runs_what_was_installed_with_it(prefix, python):
    run = locks("eval", program=prefix / "bin" / "locks", LOCKS_PYTHON=python)
    assert run.stdout == f"[{python}][{prefix / 'share/locks/evals/run.py'}]"
    run = locks("eval", "--tasks", program=prefix / "bin" / "locks", LOCKS_PYTHON=sys.executable)
    assert run.returncode == 0 and {"kl", "ruler/vt", "math/aime"} <= set(run.stdout.split())
    run = locks("inspect", "--trace", "none.trace", program=prefix / "bin" / "locks", LOCKS_PYTHON=sys.executable)
    assert run.returncode == 1 and "cannot read none.trace" in run.stderr


def test_an_installed_program_refuses_the_default_text_and_finds_its_plug_in(tmp_path, prefix):
    config = tmp_path / "a.toml"
    config.write_text('[[task]]\nname = "kl"\n[method.dense]\nselector = "dense"\n')
    program = prefix / "bin" / "locks"
    # Before anything else is looked at, let alone read.
    text = refusal("eval", "--config", config, "--model", "none.gguf", program=program, LOCKS_PYTHON=sys.executable)
    assert "text = ..." in text and "source tree" in text
    code = "import plugin_path; print(plugin_path.find_plugin())"
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(prefix / "share/locks/python")}
    env.pop("LOCKS_BUILD_DIR", None)
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=env, check=False)
    built = [*prefix.glob("lib*/**/libggml-locks.so")]
    assert run.stdout.split() == [str(path) for path in built], run.stderr
    assert built or "LOCKS_BUILD_DIR" in run.stderr


def test_all_that_the_installed_scripts_import_of_the_project_is_installed(prefix):
    share = prefix / "share" / "locks"
    needed = set()
    for path in share.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            needed |= {name for name in names if (ROOT / "python" / f"{name}.py").exists()}
    assert {path.stem for path in (share / "python").glob("*.py")} == needed
    assert not [*share.rglob("__pycache__")] and (share / "evals" / "inspect_page.html").exists()
