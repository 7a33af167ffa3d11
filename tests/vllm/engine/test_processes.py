"""The plug-in in processes of vLLM's own making, as under `vllm serve`."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import prometheus_client
import pytest
import runs
from prometheus_client import multiprocess
from test_engine import SPARSE


def run_processes(checkpoint, folder, ranks, **environment):
    """What they said, and the tokens."""
    results = folder / "tokens.json"
    with subprocess.Popen(
        [sys.executable, Path(__file__).parent / "several_processes.py", checkpoint, results, str(ranks)],
        cwd=folder,
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=300)
        finally:  # whatever came in between, the engine's and the workers' processes end too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-4000:]
    return said, json.loads(results.read_text())


@pytest.fixture(scope="module")
def tokens_of_one_process(checkpoint):
    return runs.run(checkpoint, SPARSE).tokens


def test_engine_and_worker_processes(checkpoint, tokens_of_one_process, tmp_path):
    """A refusal in the worker ends the start, with its line in the log; a start without one says that LOCKS is active; the
    tokens are those of one process."""
    counted = tmp_path / "prometheus"
    counted.mkdir()
    said, tokens = run_processes(checkpoint, tmp_path, 1, PROMETHEUS_MULTIPROC_DIR=str(counted))
    assert "LOCKS refuses to start: unknown setting budget" in said
    assert "the start ended with" in said
    assert said.count("LOCKS is active: 320 tokens of each context of 321 or more are attended, parts of 4, ") == 1
    assert "sparse rows attended" in said  # at the end, in the worker
    check_counters(counted, said)
    assert tokens == tokens_of_one_process


def check_counters(folder, said):
    """What vLLM's /metrics would show is what the worker says at its end."""
    registry = prometheus_client.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(folder))

    def value(name, **labels):
        return registry.get_sample_value(f"locks:{name}_total", labels)

    numbers = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:sparse,|exact |prompt rows)", said)]
    kinds = [value("decode_rows", kind=kind) for kind in ("sparse", "exact_short", "exact_budget")]
    assert [*kinds, value("prompt_rows")] == numbers[-4:] and kinds[0] > 0
    assert value("reported_rows") == kinds[0]
    assert 0.1 < value("reported_coverage") / kinds[0] < 1
    assert 0 < value("reported_attended_tokens") < value("reported_context_tokens")
    assert 0 < value("reported_read_bytes") < value("reported_dense_bytes")


def test_two_ranks_choose_what_one_does(checkpoint, tokens_of_one_process, tmp_path):
    """Tensor parallelism: one of the two KV heads each. In float32 sums in another order change no choice here."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        pytest.skip("two ranks need two processors")
    # By itself vLLM wants a NUMA node for each rank.
    places = {"VLLM_CPU_OMP_THREADS_BIND": f"{processors[0]}|{processors[1]}", "VLLM_HOST_IP": "127.0.0.1"}
    said, tokens = run_processes(checkpoint, tmp_path, 2, **places)
    assert said.count("LOCKS is active: 320 tokens of each context of 321 or more are attended, parts of 4, ") == 2
    assert tokens == tokens_of_one_process
