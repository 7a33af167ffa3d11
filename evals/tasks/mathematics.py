"""MATH-500 and AIME: problems whose final answer is to be put in a box. Nothing long is read here; much is written."""

from __future__ import annotations

from pathlib import Path

from sample import Sample
from tasks import records

NEW_TOKENS = 32768
INSTRUCTION = "Solve the problem step by step and put the final answer in \\boxed{}."
AIME_INSTRUCTION = f"{INSTRUCTION} The answer is an integer from 0 to 999."


def read_math500(path: str | Path, *, limit: int | None = None, repeats: int = 1) -> list[Sample]:
    """MATH-500: `problem`, `answer`, and `subject`, `level` and `unique_id` if they are there. Each problem comes `repeats`
    times, for avg@k."""
    samples: list[Sample] = []
    for record in records.read(path, limit):
        kept = {name: record.members[name] for name in ("subject", "level") if name in record.members}
        problem, answer = record.text("problem"), record.text("answer")
        name = record.members.get("unique_id", len(samples) // repeats)
        samples += _repeated("math500", len(samples), problem, answer, INSTRUCTION, repeats, {"problem": name, **kept})
    return samples


def read_aime(path: str | Path, *, limit: int | None = None, repeats: int = 1) -> list[Sample]:
    """AIME of any year: `problem` (or `question`) and `answer`, in any case of letters, as the different files have it."""
    samples: list[Sample] = []
    for record in records.read(path, limit):
        problem, answer = record.text("problem", "question"), str(record.any("answer")).strip()
        if not (answer.isascii() and answer.isdigit() and int(answer) <= 999):
            raise record.error(f"expected an integer from 0 to 999 in 'answer', got {answer!r}")
        known = {member.lower(): value for member, value in record.members.items()}
        name = known.get("id", known.get("problem_idx", len(samples) // repeats))
        samples += _repeated("aime", len(samples), problem, str(int(answer)), AIME_INSTRUCTION, repeats, {"problem": name})
    return samples


def _repeated(name, first, problem, answer, instruction, repeats, details) -> list[Sample]:
    return [
        Sample(
            task=f"math/{name}",
            index=first + repeat,
            context=f"{problem}\n\n",
            question=f"{instruction}\n",
            answers=(answer,),
            new_tokens=NEW_TOKENS,
            details={**details, "repeat": repeat},
        )
        for repeat in range(repeats)
    ]
