"""Tests inside vLLM's real engine, on the CPU, in one process as far as that goes: starting Python and vLLM takes longer
than several engines. `make test-vllm` runs them."""

import os
import sys
from pathlib import Path

# vLLM reads these when it is imported.
os.environ.update(
    {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
)
sys.path.insert(0, str(Path(__file__).parent))

import models
import pytest
import runs


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return models.write_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def stock(checkpoint):
    """What vLLM gives without LOCKS, with room for everything. Comes first of all: there is no trace of LOCKS then."""
    return runs.run(checkpoint, None)
