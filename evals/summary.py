"""What the results of a run come to: means over samples, with bootstrap intervals, by task and method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

LOWER_IS_BETTER = {"kl": "KL", "replay": "KL", "perplexity": "perplexity"}
MIN_SAMPLES = 5  # fewer say nothing of their spread
RESAMPLES = 2000
DEPTH_BINS = 10


@dataclass(frozen=True)
class Number:
    """A mean, and its 95 % interval where there are enough samples."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass
class Cell:
    """One method on one task."""

    method: str
    samples: int
    failed: int
    score: Number | None = None
    kl: Number | None = None
    perplexity: float | None = None  # of a text that is forced
    same: float | None = None
    attended: float | None = None
    bytes_share: float | None = None  # read in decode steps, to choose and to attend, of what dense attention reads
    score_share: float | None = None  # the part of it that is read to choose
    cache_share: float | None = None  # of an f16 cache
    held_share: float | None = None  # beside the cache, likewise
    coverage: float | None = None
    new_tokens: float | None = None
    cut_off: float | None = None  # share of the answers for which there was not enough room
    seconds: float | None = None
    step_seconds: float | None = None
    request_seconds: float | None = None  # of endpoints
    curve: list = field(default_factory=list)  # mean KL at each position, over the samples that are as long
    same_curve: list = field(default_factory=list)  # share of equal likeliest tokens, likewise
    first_quarter: float | None = None  # mean KL of the positions in the first and the last quarter of what was replayed
    last_quarter: float | None = None
    replayed: float | None = None  # mean number of positions
    ended_early: float | None = None  # share of trajectories that the model ended before there was no more room


@dataclass
class TaskSummary:
    label: str
    name: str
    cells: list  # of Cell, in the order of the methods
    repeats: int = 1  # answers to each problem

    @property
    def forced(self):
        return self.name in LOWER_IS_BETTER

    @property
    def diverges(self):
        """Whether its score is the divergence to dense."""
        return self.score_title == "KL"

    @property
    def score_title(self):
        return LOWER_IS_BETTER.get(self.name, f"avg@{self.repeats}" if self.repeats > 1 else "score")


def number(values, seed=0):
    """The mean of `values` with a percentile bootstrap over them."""
    values = np.asarray(values, float)
    mean = float(values.mean())
    if len(values) < MIN_SAMPLES:
        return Number(mean)
    picks = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
    return Number(mean, float(low), float(high))


def latest(results):
    """One result for each prompt and method: the last, and a failure only where nothing else is."""
    kept = {}
    for result in results:
        key = result["task"], result["index"], result["method"]
        if key not in kept or "failed" not in result or "failed" in kept[key]:
            kept[key] = result
    return list(kept.values())


def summarize(results, methods):
    """A TaskSummary for each task, in the order in which they first appear."""
    results = latest(results)
    tasks = {}
    for result in results:
        tasks.setdefault(result["task"], []).append(result)
    return [
        TaskSummary(label, rows[0]["name"], [_cell(method, rows) for method in methods if _of(rows, method)], _repeats(rows))
        for label, rows in tasks.items()
    ]


def _repeats(rows):
    return 1 + max((row.get("details") or {}).get("repeat", 0) for row in rows)


def _by_problem(rows):
    """A score for each problem: the mean over its answers, which are not independent of each other."""
    problems = {}
    for row in rows:
        if row["score"] is not None:
            problem = row["index"] - row["details"].get("repeat", 0)  # the index of its first answer
            problems.setdefault(problem, []).append(row["score"])
    return [float(np.mean(scores)) for scores in problems.values()]


def _of(rows, method):
    return [row for row in rows if row["method"] == method]


def _cell(method, rows):
    rows = sorted(_of(rows, method), key=lambda row: row["index"])
    good = [row for row in rows if "failed" not in row]
    cell = Cell(method, len(good), len(rows) - len(good))
    if not good:
        return cell
    if good[0]["name"] == "perplexity":
        logs = number([row["nll"] for row in good])
        cell.score = Number(*(None if value is None else math.exp(value) for value in (logs.mean, logs.low, logs.high)))
    else:
        scores = _by_problem(good)
        cell.score = number(scores) if scores else None
    cell.kl = _number_of(good, "kl")
    nll = _mean(good, "nll")
    cell.perplexity = math.exp(nll) if good[0]["name"] == "kl" and nll is not None else None
    cell.same = _mean(good, "same")
    cell.attended = _mean(good, "attended_tokens")
    dense = sum(row.get("dense_bytes", 0) for row in good)
    if dense > 0:
        cell.score_share = sum(row["score_bytes"] for row in good) / dense
        cell.bytes_share = cell.score_share + sum(row["attend_bytes"] for row in good) / dense
        # What dense attention reads in a step is the whole cache.
        cell.cache_share = sum(row["cache_bytes"] for row in good) / dense
        cell.held_share = sum(row["held_bytes"] for row in good) / dense
    cell.coverage = _mean(good, "coverage")
    cell.new_tokens = _mean(good, "new_tokens")
    cell.cut_off = _mean(good, "cut_off")
    cell.seconds = sum(row["seconds"] for row in good)
    if "steps" in good[0]:
        steps = sum(row["steps"] for row in good)
        cell.step_seconds = cell.seconds / steps if steps else None
    else:
        cell.request_seconds = cell.seconds / len(good)
    cell.curve = _by_position(good, "kl_positions")
    cell.same_curve = _by_position(good, "same_positions")
    if good[0]["name"] == "replay":
        cell.replayed = float(np.mean([len(row["kl_positions"]) for row in good]))
        cell.ended_early = _mean(good, "ended_early")
        quarters = [np.array_split(row["kl_positions"], 4) for row in good if len(row["kl_positions"]) >= 4]
        if quarters:
            cell.first_quarter = float(np.mean([quarter[0].mean() for quarter in quarters]))
            cell.last_quarter = float(np.mean([quarter[-1].mean() for quarter in quarters]))
    return cell


def _by_position(rows, key):
    curves = [row[key] for row in rows if row.get(key)]
    longest = max(map(len, curves), default=0)
    return [float(np.mean([curve[i] for curve in curves if i < len(curve)])) for i in range(longest)]


def _values(rows, key):
    return [row[key] for row in rows if row.get(key) is not None]


def _number_of(rows, key):
    values = _values(rows, key)
    return number(values) if values else None


def _mean(rows, key):
    values = _values(rows, key)
    return float(np.mean(values)) if values else None


@dataclass
class Overview:
    """One method over all tasks: each task weighs the same."""

    method: str
    score: float | None  # of the tasks with answers
    kl: float | None  # of the tasks whose text is forced
    question_kl: float | None  # over the questions of the tasks with answers
    bytes_share: float | None
    memory_share: float | None  # the cache and what is held beside it, of an f16 cache
    attended: float | None
    coverage: float | None
    failed: int


def overview(tasks, methods):
    """No task that a method has no result for may flatter it: means are over the tasks that all methods have, but for those
    that have none at all, as while a run goes on."""
    answered = [{cell.method for cell in task.cells if cell.samples} for task in tasks]
    begun = set().union(*answered)
    shared = [task for task, of_task in zip(tasks, answered) if of_task == begun] or tasks
    rows = []
    for method in methods:
        cells = [(task, cell) for task in shared for cell in task.cells if cell.method == method and cell.samples]

        def mean(values):
            values = [value for value in values if value is not None]
            return float(np.mean(values)) if values else None

        rows.append(
            Overview(
                method,
                mean(cell.score.mean for task, cell in cells if not task.forced and cell.score),
                mean(cell.kl.mean for task, cell in cells if task.forced and cell.kl),
                mean(cell.kl.mean for task, cell in cells if not task.forced and cell.kl),
                mean(cell.bytes_share for _, cell in cells),
                mean(cell.cache_share + cell.held_share for _, cell in cells if cell.cache_share is not None),
                mean(cell.attended for _, cell in cells),
                mean(cell.coverage for _, cell in cells),
                sum(cell.failed for task in tasks for cell in task.cells if cell.method == method),
            )
        )
    return rows


@dataclass
class Grid:
    """Scores by length and depth, for one kind of task and one method; NaN where there is no sample."""

    method: str
    lengths: list
    depths: list  # lower edges, 0 to 0.9
    scores: np.ndarray  # [depths, lengths]


def grids(results, methods):
    """Grids by the name of the task, for samples whose details have a length and a depth from 0 to 1."""
    placed = {}
    for row in latest(results):
        details = row.get("details") or {}
        length, depth = details.get("length"), details.get("depth")
        if "failed" in row or row.get("score") is None or row["name"] in LOWER_IS_BETTER:
            continue
        if isinstance(length, (int, float)) and isinstance(depth, (int, float)) and 0 <= depth <= 1:
            place = min(int(depth * DEPTH_BINS + 1e-9), DEPTH_BINS - 1)
            placed.setdefault(row["name"], []).append((row["method"], length, place, row["score"]))
    return {name: _grids(rows, methods) for name, rows in placed.items()}


def _grids(rows, methods):
    lengths = sorted({length for _, length, _, _ in rows})
    depths = sorted({place for _, _, place, _ in rows})
    made = []
    for method in methods:
        own = [row for row in rows if row[0] == method]
        if not own:
            continue
        scores = np.full((len(depths), len(lengths)), np.nan)
        for i, place in enumerate(depths):
            for j, length in enumerate(lengths):
                values = [score for _, of_length, of_place, score in own if (of_length, of_place) == (length, place)]
                if values:
                    scores[i, j] = np.mean(values)
        made.append(Grid(method, lengths, [place / DEPTH_BINS for place in depths], scores))
    return made
