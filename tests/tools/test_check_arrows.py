"""The tree keeps its rules, and the checker sees each kind of fault."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_arrows  # noqa: E402


def test_the_tree_keeps_its_rules():
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False).returncode != 0:
        pytest.skip("not a git checkout: which files are the project's is unknown")
    assert check_arrows.check_tree(ROOT) == []


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("src/score/score.cc", '#include "attend/states.h"\n', "score may include"),
        ("src/cpu/check.cc", '#include "locks/score.h"\n', "cpu knows no stage"),
        ("src/decode/decode.cc", '#include "score/query.h"\n', "decode may include"),
        ("include/locks/score.h", '#include "cpu/half.h"\n', "public headers only"),
        ("cli/bench.cc", '#include "select/heap.h"\n', "uses the public headers"),
        ("src/score/score.cc", "#include <ggml.h>\n", "only hosts/llamacpp"),
        ("src/score/score.cc", "#include <cuda_runtime.h>\n", "CUDA headers"),
        ("CMakeLists.txt", "add_compile_options(-mar" "ch=native)\n", "chosen at run time"),
        ("docs/X.md", "See /home" "/somebody/notes.\n", "path of one machine"),
        ("src/score/score.cc", "// " + "x" * check_arrows.MAX_BYTES, "at most"),
    ],
)
def test_a_fault_is_seen(tmp_path, name, text, fault):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    subprocess.run(["git", "add", name], cwd=tmp_path, check=True)
    faults = check_arrows.check_tree(tmp_path)
    assert any(fault in line for line in faults), faults


def test_what_is_allowed_is_no_fault(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    allowed = {
        "src/score/score.cc": '#include "locks/score.h"\n#include "cpu/check.h"\n#include "score/query.h"\n',
        "src/decode/decode.cc": '#include "locks/attend.h"\n#include "locks/score.h"\n',
        "hosts/llamacpp/host.cc": "#include <ggml.h>\n",
        "tests/cuda/emulated/CMakeLists.txt": "target_compile_options(emulated PRIVATE -mf" "ma)\n",
        "tools/setup.sh": "rm -rf .venv  # -m venv\n",
    }
    for name, text in allowed.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert check_arrows.check_tree(tmp_path) == []
