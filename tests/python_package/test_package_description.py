"""The package agrees with what describes it: the C++ library, its document, its version and its types."""

import dataclasses
import pickle
import re

import numpy as np
import pytest
from built_package import ROOT, STAGED, locks_cpp

DOCUMENT = ROOT / "docs" / "PYTHON.md"


def test_the_example_of_the_document_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), {})
    assert "%" in capsys.readouterr().out


def test_the_document_names_everything_that_is_public():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert not [name for name in locks_cpp.__all__ if not re.search(rf"`[^`]*\b{name}\b", text)]


def test_settings_are_those_of_the_library():
    native = locks_cpp._native
    for config, fields in [(locks_cpp.Config(), native.default_config()), (locks_cpp.Config.paper(), native.paper_config())]:
        as_float32 = {
            name: float(np.float32(value)) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(config).items()
        }
        assert list(as_float32.items()) == list(fields.items())
    assert locks_cpp.Config().keeps_values and not locks_cpp.Config.paper().keeps_values


def test_settings_can_be_copied_and_sent():
    config = locks_cpp.Config(budget_tokens=777)
    assert pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config, budget_tokens=512) == locks_cpp.Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.budget_tokens = 1


def test_names():
    assert locks_cpp.formats() == ("paper", "graded8", "graded12", "graded4")
    assert locks_cpp.targets()[-1] == "reference" and "scalar" in locks_cpp.targets()
    assert locks_cpp.PAGE_TOKENS == 16
    assert locks_cpp.page_bytes("graded8", 128, 8, False) == 8 * 598
    assert locks_cpp.page_bytes("graded8", 128, 8, True) == 8 * (598 + 402)


def test_all_versions_are_the_same():
    cmake = re.search(r"project\(locks VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
    project = re.search(r'^version = "(.*)"$', (ROOT / "python/pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert locks_cpp.__version__ == cmake == project
    build = re.search(r'"nanobind==(.*?)"', (ROOT / "python/pyproject.toml").read_text(encoding="utf-8"))[1]
    tested = re.search(r"^nanobind==(\S+)", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert build == tested


def test_the_package_is_typed():
    assert (STAGED / "locks_cpp" / "py.typed").exists()
    stub = (STAGED / "locks_cpp" / "_native.pyi").read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:def|class) (\w+)|^(\w+):", stub, re.MULTILINE))
    public = {name for name in dir(locks_cpp._native) if not name.startswith("__")} | {"__version__"}
    assert {a or b for a, b in named} == public


def test_reports_are_arrays_of_the_right_type():
    fields = {field.name: field.type for field in dataclasses.fields(locks_cpp.DecodeReport)}
    assert list(fields) == [
        "context_tokens", "attended_tokens", "completed_pages", "coverage", "score_bytes", "attend_bytes", "complete_bytes",
        "dense_bytes", "dense",
    ]  # fmt: skip
    assert np.dtype(locks_cpp.decode._RECORD).itemsize == locks_cpp._native.REPORT_BYTES
