"""What dense attention writes to published problems, replayed."""

import dataclasses
import json
import sys

import numpy as np
import pytest

import fake_engine
from fake_engine import FakeEngine, make_run

import config  # noqa: E402
import engine  # noqa: E402
import report  # noqa: E402
import task_list  # noqa: E402
import worker  # noqa: E402
from config import ConfigError  # noqa: E402
from results import load_results  # noqa: E402

METHODS = {"dense": {"selector": "dense"}, "locks 128": {"budget_tokens": 128}}
POSITIONS = 40


@pytest.fixture(autouse=True)
def words(monkeypatch):
    monkeypatch.setattr(FakeEngine, "numbers", {})
    monkeypatch.setattr(FakeEngine, "words", [])
    monkeypatch.setattr(FakeEngine, "ends_after", None)
    monkeypatch.setitem(sys.modules, "scoring", None)


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "problems.jsonl"
    lines = [json.dumps({"problem": f"problem {i}", "answer": "1", "unique_id": f"id {i}", "level": 3}) for i in range(5)]
    path.write_text("\n".join(lines))
    return str(path)


def tables(problems, **task):
    task = {"name": "replay", "data": problems, "count": 3, "positions": POSITIONS, **task}
    return {"task": [task], "method": METHODS, "before": "<user>", "after": "<model>", "progress": False}


def test_problems_are_spread_over_the_file_and_read_whole(problems):
    work = task_list.make_work(config.parse(tables(problems)), FakeEngine("", "", {}, 1), [7])
    assert [item.sample.details["problem"] for item in work] == ["id 0", "id 2", "id 4"]
    assert [item.index for item in work] == [0, 1, 2] and len({item.digest() for item in work}) == 3
    first = [FakeEngine.words[token] for token in work[1].context[1:]]
    assert work[1].context[0] == 7 and first[:3] == ["<user>", "problem", "2"] and first[-1] == "<model>"
    assert all(word in first for word in ("\\boxed{}.", "step"))
    assert len(work[0].question) == 0 and work[0].sample.new_tokens == POSITIONS + 1
    assert work[0].kl_rows("question-sparse") == POSITIONS and work[0].task.label == "replay problems.jsonl"


@pytest.mark.parametrize(("ends_after", "replayed"), [(None, POSITIONS), (11, 10)])
def test_a_trajectory_that_ends_early_is_reported(tmp_path, monkeypatch, problems, ends_after, replayed):
    monkeypatch.setattr(FakeEngine, "ends_after", ends_after)
    make_run(tmp_path, tables(problems)).go()
    rows = load_results(tmp_path / "out" / "results.jsonl")
    assert len(rows) == 6 and all(len(row["kl_positions"]) == replayed for row in rows)
    assert all(row["ended_early"] == (ends_after is not None) for row in rows)
    (task,) = report.Report(tmp_path / "out").tasks
    header, *cells = report.Report(tmp_path / "out").task_table(task)
    assert all(row[header.index("tokens replayed")] == str(replayed) for row in cells)
    assert ("ended early, %" in header) == (ends_after is not None)
    report.write(tmp_path / "out")


def test_the_least_length_reaches_the_engine(tmp_path, problems):
    made = config.parse(tables(problems, min_positions=30))
    (first, *_) = task_list.make_work(made, FakeEngine("", "", {}, 1))
    assert worker.make_job(made, first, tmp_path, 0).sampling.least == 30


def test_what_is_forced_is_as_long_as_what_was_written(tmp_path):
    trajectory = tmp_path / "trajectory.npy"
    np.save(trajectory, np.array([5, 6, 7, 2], np.int32))
    none = np.array([], np.int32)
    job = engine.Job(tmp_path / "c", tmp_path / "r", none, none, 9, True, False, 8, trajectory=trajectory)
    job = engine._with_trajectory(dataclasses.replace(job, sampling=engine.Sampling(1.0)))
    assert list(job.fed) == [5, 6, 7] and job.kl_rows == 3 and job.new_tokens == 0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"text": "novel.txt"}, "'replay' has text and data"),
        ({"tokens": 100}, "'replay' has tokens and data"),
        ({"count": 6}, "'replay problems.jsonl': count is 6, and the file has 5 problems"),
        ({"data": "none.jsonl"}, "'replay none.jsonl': cannot read none.jsonl"),
        ({"name": "kl"}, "task 'kl' has no data"),
        ({"name": "kl", "data": "", "tokens": 100, "min_positions": 5}, "task 'kl' has no min_positions"),
        ({"min_positions": 41}, "task 1: min_positions is 41; it may be 0 to 40"),
        ({"new_tokens": 9}, "task 'replay' has no new_tokens"),
    ],
)
def test_what_cannot_be_replayed_is_named(problems, task, message):
    with pytest.raises(ConfigError) as error:
        made = config.parse(tables(problems, **task))
        task_list.check(made.tasks)
        task_list.make_work(made, FakeEngine("", "", {}, 1))
    assert message in str(error.value)


def test_files_that_are_not_problems_are_named(tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text('{"question": "?"}\n')
    with pytest.raises(ConfigError, match="'replay other.jsonl'.*line 1: 'problem' is missing"):
        task_list.check(config.parse(tables(str(path))).tasks)
