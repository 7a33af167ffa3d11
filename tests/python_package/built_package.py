"""The package as it was built. Test modules that import this are skipped where there is none."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAGED = Path(os.environ.get("LOCKS_BUILD_DIR") or ROOT / "build" / "release") / "python"

if not any((STAGED / "locks_cpp").glob("_native*.so")):
    reason = "locks_cpp was not built: CMake says why (no nanobind, no Python headers, or LOCKS_BUILD_PYTHON=OFF)"
    pytest.skip(reason, allow_module_level=True)
sys.path.insert(0, str(STAGED))

import locks_cpp  # noqa: E402

__all__ = ["ROOT", "STAGED", "locks_cpp"]
