"""Several prompts at a time: the same results, an even share of the work, and a clean end."""

import json
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

import fake_engine
from fake_engine import TABLES, FakeEngine, make_run

import config  # noqa: E402
from config import ConfigError  # noqa: E402
from jobs import Batch, Jobs, batches  # noqa: E402
from results import load_results  # noqa: E402

JOBS = 3
INTERRUPTED = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in a shell's background are started without it
sys.path.insert(0, sys.argv[1])
import pytest
import fake_engine
from session import SessionError

class Endless(fake_engine.FakeEngine):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.killed = threading.Event()

    def kill(self):
        self.killed.set()

    def answer(self, job):
        if self.settings["selector"] == "dense":
            return super().answer(job)
        print("answering", flush=True)
        self.killed.wait()
        raise SessionError("the process of llama.cpp ended with status -9")

fake_engine.use_tiny_tasks(pytest.MonkeyPatch())
fake_engine.TABLES["method"]["locks 128"]["selector"] = "locks"
run = fake_engine.make_run(sys.argv[2], jobs=2)
run.make_engine = Endless
try:
    run.go()
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    fake_engine.use_tiny_tasks(monkeypatch)
    for name, value in (("answered", 0), ("read_contexts", 0), ("fails", ())):
        monkeypatch.setattr(FakeEngine, name, value)


def lines_of(folder):
    return sorted(load_results(Path(folder) / "out" / "results.jsonl"), key=json.dumps)


class Together(FakeEngine):
    """Its first contexts are read at the same time, or not at all."""

    barrier = None

    def read(self, job):
        if FakeEngine.read_contexts < JOBS:
            Together.barrier.wait(30)
        return super().read(job)


def test_jobs_work_at_the_same_time_and_give_the_same(tmp_path):
    make_run(tmp_path / "one").go()
    FakeEngine.read_contexts = 0
    Together.barrier = threading.Barrier(JOBS)
    run = make_run(tmp_path / "several", jobs=JOBS)
    run.make_engine = Together
    run.go()
    assert lines_of(tmp_path / "several") == lines_of(tmp_path / "one")
    assert not (tmp_path / "several" / "out" / "caches").exists()


def test_a_folder_goes_on_with_another_number_of_jobs(tmp_path):
    make_run(tmp_path / "whole").go()
    program = [sys.executable, fake_engine.__file__, str(tmp_path / "killed"), "17"]
    assert subprocess.run(program, capture_output=True, timeout=60).returncode == -9
    make_run(tmp_path / "killed", jobs=JOBS).go()
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "whole")
    make_run(tmp_path / "killed", jobs=2).go()
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "whole")


def test_failures_are_recorded_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeEngine, "fails", ("quest",))
    make_run(tmp_path, jobs=JOBS).go()
    failed = [row for row in lines_of(tmp_path) if "failed" in row]
    assert len(failed) == 16 and {row["failed"] for row in failed} == {"MemoryError: no room"}
    monkeypatch.setattr(FakeEngine, "fails", ())
    make_run(tmp_path, jobs=JOBS).go()
    assert sum("failed" not in row for row in lines_of(tmp_path)) == 16 * 3


def test_an_interruption_ends_all_jobs_and_leaves_no_caches(tmp_path):
    program = [sys.executable, "-c", INTERRUPTED, str(Path(fake_engine.__file__).parent), str(tmp_path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(2):  # both jobs
            assert process.stdout.readline() == "answering\n"
        assert list((tmp_path / "out" / "caches").glob("*/*.npy"))
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 130, process.stderr.read()
        finally:
            process.kill()
    rows = lines_of(tmp_path)
    assert rows and all(row["method"] == "dense" and "failed" not in row for row in rows)
    assert not (tmp_path / "out" / "caches").exists()


class Slow:
    """A worker that does nothing for a while, and knows what all of them hold."""

    lock, held, most, done = threading.Lock(), 0, 0, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def do(self, batch):
        with Slow.lock:
            Slow.held += batch.bytes
            Slow.most = max(Slow.most, Slow.held)
        time.sleep(0.02)
        with Slow.lock:
            Slow.held -= batch.bytes
            Slow.done.append(batch.bytes)


def test_the_caches_of_all_jobs_fit_together(monkeypatch):
    for name, value in (("held", 0), ("most", 0), ("done", [])):
        monkeypatch.setattr(Slow, name, value)
    sizes = [60, 60, 30, 30, 40, 10, 250]
    Jobs(4, 100).run([Batch([], size) for size in sizes], lambda number: Slow())
    assert sorted(Slow.done) == sorted(sizes)
    # The largest does not fit, and is alone; of the others no more than fit are there together.
    assert Slow.most == 250
    monkeypatch.setattr(Slow, "most", 0)
    Jobs(4, 100).run([Batch([], size) for size in sizes[:-1]], lambda number: Slow())
    assert 60 < Slow.most <= 100


def test_what_a_worker_raises_ends_the_run():
    class Broken(Slow):
        def do(self, batch):
            raise KeyError("a fault of the program")

    with pytest.raises(KeyError, match="a fault of the program"):
        Jobs(2, 100).run([Batch([], 1) for _ in range(8)], lambda number: Broken())


def work_of(seconds):
    return [(types.SimpleNamespace(seconds=value), ["dense"]) for value in seconds]


def shared(rest, jobs, cache_bytes=10**9):
    made = batches(rest, jobs, cache_bytes, lambda item: 10, lambda item, missing: item.seconds)
    return [[item.seconds for item, _ in batch.pairs] for batch in made]


def test_one_job_keeps_to_the_order_and_several_begin_with_the_longest():
    assert shared(work_of([1, 9, 3]), 1) == [[1, 9, 3]]
    assert shared(work_of([1, 9, 3]), 1, 20) == [[1, 9], [3]]
    assert shared(work_of([1, 9, 3]), 2) == [[9], [3], [1]]
    assert shared(work_of([1] * 32 + [50]), 2)[0] == [50]
    assert max(len(batch) for batch in shared(work_of([1] * 32), 2)) == 4
    # Each of two jobs has a half of the room.
    assert max(len(batch) for batch in shared(work_of([1] * 32), 2, 40)) == 2


@pytest.mark.parametrize("jobs", [0, 1.5, "2"])
def test_wrong_numbers_of_jobs_are_named(jobs):
    with pytest.raises(ConfigError, match="jobs is"):
        config.parse({**TABLES, "jobs": jobs})


def test_endpoints_have_requests_instead():
    tables = {"jobs": 2, "task": [{"name": "ruler/vt"}], "method": {"a": {"url": "http://localhost:8000/v1"}}}
    with pytest.raises(ConfigError, match="jobs is for llama.cpp.*requests = N"):
        config.parse(tables)
