"""RULER's thirteen tasks, made anew from words and noise of our own: what is asked and how much of it are RULER's, the
wording is not. docs/EVALS.md lists the differences."""

from __future__ import annotations

import random
from pathlib import Path

from sample import Sample
from tasks import prose, ruler_lists, ruler_needles, ruler_questions
from tasks.errors import TaskError
from tasks.sizing import CountTokens, Sizing

TASKS = (
    *ruler_needles.KINDS,
    "vt",
    "cwe",
    "fwe",
    *ruler_questions.READERS,
)


def generate(
    task: str,
    tokens: int,
    count: int,
    seed: int,
    count_tokens: CountTokens,
    *,
    haystack: str | Path | None = None,
    data: str | Path | None = None,
) -> list[Sample]:
    """`count` samples of which prompt and new tokens fit into `tokens`.

    `haystack` is a text file for the tasks that hide needles in prose (made-up prose without it); `data` is the published
    JSON file of SQuAD (`qa_1`) or HotpotQA (`qa_2`), which ask about made-up documents without it."""
    make = _maker(task, tokens, haystack, data)
    sizing = Sizing(tokens, count_tokens)
    return [sizing.fit(make(index, f"{seed}/{task}/{tokens}/{index}")) for index in range(count)]


def _maker(task, tokens, haystack, data):
    if haystack and not (task in ruler_needles.KINDS and ruler_needles.KINDS[task].haystack == "prose"):
        raise TaskError(f"{task} hides nothing in prose, so it takes no haystack")
    if data and task not in ruler_questions.READERS:
        raise TaskError(f"{task} takes no data file")
    if task in ruler_needles.KINDS:
        return lambda index, seed: ruler_needles.builder(task, index, seed, _text(task, seed, haystack))
    if task in ruler_questions.READERS:
        if data is None:
            return lambda index, seed: ruler_questions.made_up(task, index, seed)
        questions = ruler_questions.READERS[task](data)
        return lambda index, seed: ruler_questions.published(task, index, seed, questions)
    makers = {"vt": ruler_lists.track_variables, "cwe": ruler_lists.common_words, "fwe": ruler_lists.frequent_words}
    if task not in makers:
        raise TaskError(f"no task {task!r} in RULER; there are {', '.join(TASKS)}")
    return lambda index, seed: makers[task](index, seed, tokens)


def _text(task, seed, haystack):
    """Sentences to hide needles in, or None where the noise is the needles' own kind."""
    kind = ruler_needles.KINDS[task].haystack
    if kind == "needles":
        return None
    if kind == "noise":
        return prose.noise
    return prose.from_file(haystack) if haystack else prose.made_up(random.Random(f"{seed}/prose"))
