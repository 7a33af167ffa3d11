"""The plug-in in processes of vLLM's own making, as under `vllm serve`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import runs
from test_engine import SPARSE


def test_engine_and_worker_processes(checkpoint, tmp_path):
    """A refusal in the worker ends the start, with its line in the log; a start without one says that LOCKS is active; the
    tokens are those of one process."""
    results = tmp_path / "tokens.json"
    run = subprocess.run(
        [sys.executable, Path(__file__).parent / "several_processes.py", checkpoint, results],
        cwd=tmp_path,
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert "LOCKS refuses to start: unknown setting budget" in run.stdout
    assert "the start ended with" in run.stdout
    assert run.stdout.count("LOCKS is active: 320 tokens of each context of 321 or more") == 1
    assert "sparse rows attended" in run.stdout  # at the end, in the worker
    assert json.loads(results.read_text()) == runs.run(checkpoint, SPARSE).tokens
