"""Benchmarks from the files that they are published in, which are given by path and read as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sample import Sample
from tasks import infinitebench, longbench, mathematics
from tasks.errors import TaskError
from tasks.sizing import CountTokens, cut_middle

MATHEMATICS = {"math/math500": mathematics.read_math500, "math/aime": mathematics.read_aime}
TASKS = (
    *(f"longbench/{name}" for name in longbench.SETS),
    *(f"infinitebench/{name}" for name in infinitebench.TASKS),
    *MATHEMATICS,
)


def generate(
    task: str,
    tokens: int,
    count: int,
    seed: int,
    count_tokens: CountTokens,
    *,
    data: str | Path | None = None,
    new_tokens: int | None = None,
    repeats: int = 1,
) -> list[Sample]:
    """The first `count` samples of the published file `data`, as they are, whatever the seed; of mathematics each `repeats`
    times. With `tokens` above 0, contexts that are too long are cut in their middle. LongBench's own dataset2prompt.json is
    used if it lies beside the file."""
    if data is None:
        raise TaskError(f"{task} is read from its published file; give that file's path (data = ...)")
    samples = read(task, data, limit=count, repeats=repeats, prompts=_beside(task, data))
    if new_tokens:
        samples = [replace(sample, new_tokens=new_tokens) for sample in samples]
    return [cut_middle(sample, tokens, count_tokens) for sample in samples] if tokens > 0 else samples


def _beside(task: str, data: str | Path) -> Path | None:
    prompts = Path(data).parent / "dataset2prompt.json"
    return prompts if task.startswith("longbench/") and prompts.exists() else None


def read(
    name: str, path: str | Path, *, limit: int | None = None, repeats: int = 1, prompts: str | Path | None = None
) -> list[Sample]:
    """The first `limit` samples (or all) of a published file.

    `repeats` is how often each problem of `math/*` comes, for avg@k. `prompts` is LongBench's own dataset2prompt.json."""
    for argument, value in (("limit", limit), ("repeats", repeats)):
        if value is not None and value < 1:
            raise TaskError(f"expected {argument} of at least 1, got {value}")
    family, _, task = name.partition("/")
    if name in MATHEMATICS:
        return MATHEMATICS[name](path, limit=limit, repeats=repeats)
    if repeats != 1:
        raise TaskError(f"{name} has one answer to each question; repeats is for {', '.join(MATHEMATICS)}")
    if family == "longbench":
        return longbench.read(task, path, limit=limit, prompts=prompts)
    if family == "infinitebench":
        return infinitebench.read(task, path, limit=limit)
    raise TaskError(f"no published task {name!r}; there are {', '.join(TASKS)}")
