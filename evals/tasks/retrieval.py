"""Single facts in long contexts: InfiniteBench's five synthetic tasks at any length, and a grid of needles over lengths and
depths in a text of the user's.

The contexts and questions have InfiniteBench's forms in our own words; docs/EVALS.md lists the differences."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

from sample import Sample
from tasks import prose, retrieval_lists
from tasks.errors import TaskError
from tasks.sizing import CountTokens, Sizing, spread
from tasks.words import key_words, number

GRID = tuple(tenth / 10 for tenth in range(11))


def generate(
    task: str, tokens: int, count: int, seed: int, count_tokens: CountTokens, *, haystack: str | Path | None = None
) -> list[Sample]:
    """`count` samples of which prompt and new tokens fit into `tokens`; for `needle`, at 11 depths in turn,
    or at as many as there are samples."""
    if task not in TASKS:
        raise TaskError(f"no task {task!r} among those of retrieval; there are {', '.join(TASKS)}")
    if task == "needle":
        depths = GRID if count >= len(GRID) else tuple((i + 0.5) / count for i in range(count))
        return grid([tokens], depths, -(-count // len(depths)), seed, count_tokens, haystack=haystack)[:count]
    if haystack:
        raise TaskError(f"{task} has noise of its own and takes no haystack")
    sizing = Sizing(tokens, count_tokens)
    return [sizing.fit(TASKS[task](index, f"{seed}/{task}/{tokens}/{index}")) for index in range(count)]


def grid(
    lengths: Iterable[int],
    depths: Iterable[float],
    count: int,
    seed: int,
    count_tokens: CountTokens,
    *,
    haystack: str | Path | None = None,
) -> list[Sample]:
    """`count` rounds of one sample for each length in tokens and each depth from 0 (the beginning) to 1 (the end).
    `haystack` is a text file, which is repeated where it is too short; without it the needles lie in made-up prose."""
    depths = list(depths)
    for depth in depths:
        if not 0 <= depth <= 1:
            raise TaskError(f"expected depths from 0 to 1, got {depth}")
    text = prose.from_file(haystack) if haystack else None
    samples: list[Sample] = []
    for tokens in lengths:
        sizing = Sizing(tokens, count_tokens)
        for repeat in range(count):
            for depth in depths:
                seed_here = f"{seed}/needle/{tokens}/{depth}/{repeat}"
                sentences = text or prose.made_up(random.Random(f"{seed_here}/prose"))
                samples.append(sizing.fit(_needle(len(samples), seed_here, depth, sentences)))
    return samples


def _needle(index: int, seed: str, depth: float, text: Callable[[int], list[str]]) -> Callable[[int], Sample]:
    rng = random.Random(seed)
    key, value = key_words(rng), number(rng, 7)

    needle = f"The number that was agreed on for {key} is {value}."

    def build(n: int) -> Sample:
        return Sample(
            task="retrieval/needle",
            index=index,
            context=" ".join(prose.insert(text(n), [needle], [depth])) + "\n\n",
            question=f"Which number was agreed on for {key}, according to the text above?\n",
            answers=(value,),
            new_tokens=16,
            prefix=f"The number that was agreed on for {key} is",
            details={"depth": depth, "needles": 1},
        )

    return build


def _hidden(task: str, index: int, what: str, secret: str, new_tokens: int) -> Callable[[int], Sample]:
    """A line that says the secret twice, among lines of noise."""
    depth = spread(index)

    def build(n: int) -> Sample:
        needle = f"The {what} is {secret}. Keep it in mind. {secret} is the {what}."
        return Sample(
            task=f"retrieval/{task}",
            index=index,
            context=INTRO + "\n".join(prose.insert(prose.noise(n), [needle], [depth])) + "\n\n",
            question=f"What is the {what}?\n",
            answers=(secret,),
            new_tokens=new_tokens,
            prefix=f"The {what} is",
            details={"depth": depth, "needles": 1},
        )

    return build


INTRO = "Something important is hidden in a lot of text that does not matter. Find it, you will be asked about it.\n\n"


def _passkey(index: int, seed: str) -> Callable[[int], Sample]:
    return _hidden("passkey", index, "pass key", "".join(random.Random(seed).choices("0123456789", k=5)), 6)


def _number_string(index: int, seed: str) -> Callable[[int], Sample]:
    """Ten digits of which some follow themselves: five are drawn, and five times one of them is doubled."""
    rng = random.Random(seed)
    digits = rng.choices("0123456789", k=5)
    for _ in range(5):
        place = rng.randrange(len(digits))
        digits.insert(place, digits[place])
    return _hidden("number_string", index, "sequence of digits", "".join(digits), 12)


TASKS = {
    "passkey": _passkey,
    "number_string": _number_string,
    "kv_retrieval": retrieval_lists.key_values,
    "math_find": retrieval_lists.find_number,
    "code_run": retrieval_lists.run_code,
    "needle": None,  # by grid
}
