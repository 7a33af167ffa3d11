"""The tests here need the package as it was built, and NumPy, but not vLLM. Those in engine/ need vLLM's own environment:
`make test-vllm`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IN_VLLMS_ENVIRONMENT = "LOCKS_TEST_VLLM" in os.environ

collect_ignore_glob = [] if IN_VLLMS_ENVIRONMENT else ["engine/*"]
if not IN_VLLMS_ENVIRONMENT:
    sys.path.insert(0, str(Path(os.environ.get("LOCKS_BUILD_DIR") or ROOT / "build" / "release") / "python"))
