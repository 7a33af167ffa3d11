"""Key-value pairs, numbers and functions: contexts in which every entry might be the one that is asked for."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

from sample import Sample
from tasks.sizing import spread
from tasks.words import identifier

DIGITS_PER_PAIR = 64

Builder = Callable[[int], Sample]


def key_values(index: int, seed: str) -> Builder:
    """A JSON object of random identifiers. The last pair has only the digits for which there is room."""
    depth = spread(index)

    def build(n: int) -> Sample:
        rng = random.Random(seed)
        pairs = [(identifier(rng), identifier(rng)) for _ in range(n // DIGITS_PER_PAIR + 1)]
        place = min(len(pairs) - 1, round(len(pairs) * depth))
        key, value = pairs[place]
        short = n % DIGITS_PER_PAIR
        if short:
            digits = identifier(rng).replace("-", "") + identifier(rng).replace("-", "")
            pairs.append((digits[: short // 2], digits[short // 2 : short]))
        listed = ", ".join(f'"{k}": "{v}"' for k, v in pairs)
        return Sample(
            task="retrieval/kv_retrieval",
            index=index,
            context=f"Find the value of a key in the JSON object below.\n\nJSON data:\n{{{listed}}}\n\n",
            question=f'Key: "{key}"\n',
            answers=(value,),
            new_tokens=50,
            prefix="The value of this key is:",
            details={"depth": place / max(1, len(pairs) - 1), "needles": 1, "pairs": len(pairs)},
        )

    return build


LARGEST = 99
RANKS = {
    "largest": lambda numbers: sorted({*numbers})[-1],
    "second largest": lambda numbers: sorted({*numbers})[-2],
    "third largest": lambda numbers: sorted({*numbers})[-3],
    "smallest": lambda numbers: sorted({*numbers})[0],
    "second smallest": lambda numbers: sorted({*numbers})[1],
    "third smallest": lambda numbers: sorted({*numbers})[2],
    "median": statistics.median,
}


def find_number(index: int, seed: str) -> Builder:
    """A list of numbers from 0 to 99, of which one by rank is asked for; equal numbers have one rank. As in InfiniteBench,
    a random tenth or so at one end of the range does not occur, so that the answer has to be read."""
    rank = list(RANKS)[index % len(RANKS)]

    def build(n: int) -> Sample:
        rng = random.Random(seed)
        low, high = 0, LARGEST
        if "smallest" in rank or (rank == "median" and rng.random() > 0.5):
            low = rng.randint(0, LARGEST // 5)
        else:
            high = rng.randint(LARGEST * 4 // 5, LARGEST)
        numbers = [*rng.sample(range(low, high + 1), 3), *(rng.randint(low, high) for _ in range(n))]
        return Sample(
            task="retrieval/math_find",
            index=index,
            context=f"Which is the {rank} number of the following list?\n\n{numbers}\n\n",
            question=f"Answer with one number and no other words. The {rank} number of the list is:",
            answers=(str(RANKS[rank](numbers)),),
            new_tokens=4,
            details={"rank": rank, "numbers": len(numbers)},
        )

    return build


DEPTHS = (2, 4, 6, 8, 10)
FILLERS = 5
FILLER = "# nothing is defined here"


def run_code(index: int, seed: str) -> Builder:
    """Small functions that call one another; what does one of them return? The calls are 2, 4, 6, 8 and 10 deep in turn."""
    levels = DEPTHS[index % len(DEPTHS)]

    def build(n: int) -> Sample:
        rng = random.Random(seed)
        per_level = n // (FILLERS * levels) + 1
        extra = n // FILLERS % levels  # so many levels have one function more
        names = rng.sample(range(1, 2 * (n // FILLERS + levels) + 1), per_level * levels + extra)
        groups = [names[level::levels] for level in range(levels)]
        calls = {}
        for group, below in zip(groups, [*groups[1:], None]):
            for name in group:
                calls[name] = (rng.choice(below) if below else None, rng.randint(-12, 17))
        start, argument = groups[0][0], rng.randint(-10, 10)
        code = [_function(name, *calls[name]) for name in sorted(calls)] + [FILLER + "\n"] * (n % FILLERS)
        call = f"func_{start}({argument})"
        return Sample(
            task="retrieval/code_run",
            index=index,
            context=f"Here is a Python module.\n\n{chr(10).join(code)}\n",
            question=f"Which number exactly does {call} return?\n",
            answers=(str(_run(calls, start, argument)),),
            new_tokens=5,
            prefix=f"The value of {call} is",
            details={"calls": levels, "functions": len(calls)},
        )

    return build


def _function(name: int, callee: int | None, added: int) -> str:
    inner = "x" if callee is None else f"func_{callee}(x)"
    change = "" if added == 0 else f" {'+' if added > 0 else '-'} {abs(added)}"
    return f"def func_{name}(x):\n    return {inner}{change}\n"


def _run(calls: dict[int, tuple[int | None, int]], name: int | None, value: int) -> int:
    while name is not None:
        name, added = calls[name]
        value += added
    return value
