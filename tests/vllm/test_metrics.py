"""What an engine says about itself, from the library's reports."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("locks_cpp", reason="the native module of locks_cpp is not built")

from locks_cpp.vllm.exported import COUNTERS, DOCUMENTATION
from locks_cpp.vllm.metrics import COUNTS, Metrics

LOGGER = logging.getLogger("locks_cpp.test")


def report(context, attended, coverage, dense):
    rows = len(context)
    return SimpleNamespace(
        context_tokens=np.array(context, np.int32),
        attended_tokens=np.array(attended, np.float32),
        coverage=np.array(coverage, np.float32),
        score_bytes=np.full(rows, 10),
        attend_bytes=np.full(rows, 20),
        complete_bytes=np.full(rows, 5),
        dense_bytes=np.full(rows, 100),
        dense=np.array(dense),
    )


def test_rows_are_counted_by_why_they_were_dense():
    metrics = Metrics(LOGGER, min_context_tokens=1000, log_interval_seconds=0)
    metrics.add_decode(report([900, 1500, 4000, 6000], [900, 1500, 400, 600], [1, 1, 0.5, 0.9], [True, True, False, False]))
    metrics.add_decode(report([999], [999], [1], [True]))
    now = metrics.as_dict()
    assert (now["rows_dense_short"], now["rows_dense_budget"], now["rows_sparse"]) == (2, 1, 2)
    assert now["attended_share"] == pytest.approx(0.1)
    assert now["coverage"] == pytest.approx(0.7) and now["min_coverage"] == pytest.approx(0.5)
    assert now["read_bytes"] / now["dense_bytes"] == pytest.approx(0.35)


def test_it_says_how_it_stands_once_and_only_if_there_is_news(caplog):
    metrics = Metrics(LOGGER, min_context_tokens=1000, log_interval_seconds=3600)
    with caplog.at_level("INFO", logger=LOGGER.name):
        metrics.log()
        assert caplog.messages == []
        metrics.add_decode(report([4000], [400], [0.875], [False]))
        metrics.log_if_due()
        assert caplog.messages == []
        metrics.log()
        metrics.log()
    (line,) = caplog.messages
    assert "1 decode rows (of one layer each): 1 sparse, 0 exact" in line
    assert "attended 10.0% of their tokens, estimated coverage 87.5%" in line and "read 35.0% of dense" in line


def test_the_interval_starts_with_the_first_decode(caplog, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("locks_cpp.vllm.metrics.time.monotonic", lambda: clock[0])
    metrics = Metrics(LOGGER, 0, log_interval_seconds=60)
    said = []
    with caplog.at_level("INFO", logger=LOGGER.name):
        for clock[0] in (5000, 5059, 5061, 5100, 5122, 9000):
            metrics.add_decode(report([4000], [400], [0.875], [False]))
            metrics.log_if_due()
            said.append(len(caplog.messages))
    assert said == [0, 0, 1, 1, 2, 3]


def test_keys_that_are_not_finite_are_mentioned():
    metrics = Metrics(LOGGER, 0, 0)
    assert "not finite" not in metrics.describe()
    metrics.add("always_attended_records", 3)
    assert "3 records hold a key or value that is not finite" in metrics.describe()


def test_on_cuda_all_rows_are_counted_and_some_reported():
    metrics = Metrics(LOGGER, min_context_tokens=1000, log_interval_seconds=0)
    context = np.array([900, 4000, 6000])
    metrics.add_rows(context, context < 1000, layers=40)
    now = metrics.as_dict()
    assert (now["rows_dense_short"], now["rows_sparse"], now["rows_reported"]) == (40, 80, 0)
    assert "estimated coverage" not in metrics.describe()
    metrics.add_report(report([900, 4000, 6000], [900, 400, 600], [1, 0.5, 0.9], [True, False, False]))
    now = metrics.as_dict()
    assert now["rows_sparse"] == 80 and now["attended_share"] == pytest.approx(0.1) and now["coverage"] == pytest.approx(0.7)
    assert "sparse rows (2 sampled) attended 10.0%" in metrics.describe()


def test_counts_are_exported_once_a_second_and_at_the_end(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("locks_cpp.vllm.metrics.time.monotonic", lambda: clock[0])
    told = []
    metrics = Metrics(LOGGER, 0, log_interval_seconds=0, export=lambda counts: told.append(dict(counts)))
    for clock[0] in (1000.0, 1000.4, 1000.9, 1001.1):
        metrics.add_decode(report([4000], [400], [0.875], [False]))
        metrics.log_if_due()
    assert [counts["rows_sparse"] for counts in told] == [1, 4]
    metrics.add_decode(report([4000], [400], [0.875], [False]))
    metrics.end()
    assert told[-1]["rows_sparse"] == 5 and told[-1]["coverage_sum"] == pytest.approx(5 * 0.875)


def test_every_count_but_that_of_the_debug_check_is_exported():
    assert {*COUNTERS, "pages_checked"} == set(COUNTS)
    assert {name for name, _ in COUNTERS.values()} == set(DOCUMENTATION)
