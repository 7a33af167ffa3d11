"""The score of an answer, from 0 to 1, by the rule of the task that the sample belongs to.

`sample.task` is `family/name`; a family's definitions are in scores_*.py. Benchmarks publish means times 100."""

from __future__ import annotations

from collections.abc import Sequence

import scores_infinitebench
import scores_longbench
import scores_math
from sample import Sample


def match_all(answer: str, references: Sequence[str]) -> float:
    """RULER's string_match_all: the share of the references that occur in the answer, whatever their case."""
    return sum(reference.lower() in answer.lower() for reference in references) / len(references)


def match_part(answer: str, references: Sequence[str]) -> float:
    """RULER's string_match_part: whether any reference occurs in the answer, whatever its case."""
    return float(any(reference.lower() in answer.lower() for reference in references))


def score(sample: Sample, answer: str) -> float:
    """What the model wrote behind `sample.prefix`, scored."""
    family, _, name = sample.task.partition("/")
    if family == "ruler":
        return match_part(answer, sample.answers) if name.startswith("qa_") else match_all(answer, sample.answers)
    if family == "longbench":
        return scores_longbench.score(name, answer, sample.answers, sample.details.get("classes", ()))
    if family in ("infinitebench", "retrieval") and name in scores_infinitebench.METRICS:
        return scores_infinitebench.METRICS[name](answer, sample.answers)
    if sample.task == "retrieval/needle":
        return match_all(answer, sample.answers)
    if family == "math":
        return scores_math.score(answer, sample.answers)
    raise ValueError(f"no rule to score the task {sample.task!r}")
