"""The plug-in, as built, inside other versions of ggml than the one whose headers it was compiled with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("LOCKS_BUILD_DIR") or Path(__file__).resolve().parents[2] / "build" / "release")
PROGRAM = BUILD / "tests" / "hosts" / "plugin_test"
PLUGIN = BUILD / "libggml-locks.so"
VERSIONS = ["0.9.11", "0.13.1", "0.17.0"]  # 0.20.2 is the one that ctest runs


@pytest.fixture(scope="session", params=VERSIONS)
def ggml(request):
    """The folder of one version's libraries, installed beside the build the first time."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM.name} was not built: no ggml libraries beside the headers")
    target = BUILD / "ggml" / request.param
    if not (target / "libggml").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", str(target)]
        done = subprocess.run([*pip, f"libggml-python=={request.param}"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"libggml-python {request.param} cannot be installed here")
    found = sorted(target.glob("libggml/lib*/libggml.so.0"))
    assert found, f"libggml-python {request.param} holds no libggml.so.0"
    return request.param, found[0].parent


@pytest.mark.parametrize("front_end", ["callback", "backend"])
def test_plugin_in_version(ggml, front_end):
    version, libraries = ggml
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LOCKS_")},
        "LD_LIBRARY_PATH": str(libraries),
        "GGML_HOST_PLUGIN": str(PLUGIN),
        "GGML_HOST_FRONT_END": front_end,
        "LOCKS_BUDGET_TOKENS": "160",
    }
    environment.pop("GTEST_OUTPUT", None)
    run = subprocess.run([PROGRAM, "--gtest_brief=1"], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert f"active in ggml {version} " in run.stderr, run.stderr[-2000:]
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
