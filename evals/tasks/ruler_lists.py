"""RULER's tasks on what is spread over the whole context: chains of variables, and words that are more frequent."""

from __future__ import annotations

import math
import random
import string
from collections.abc import Callable

from sample import Sample
from tasks import prose
from tasks.words import distinct, list_words, number

HOPS = 4
EXAMPLE_SENTENCES = 15
COMMON = 10
LONG = 4096  # tokens from which on RULER repeats words more often
FREQUENT = 3
LETTERS = 6
TOKENS_PER_WORD = 50  # of the vocabulary of `fwe`

Builder = Callable[[int], Sample]


def track_variables(index: int, seed: str, tokens: int) -> Builder:
    """`vt`: a variable gets a number, and four more get it from one another; which variables have it? A short solved example
    comes first."""
    rng = random.Random(seed)
    value, example_value = distinct(lambda: number(rng, 5), 2)
    names = distinct(lambda: _letters(rng, string.ascii_uppercase, 5), HOPS + 1)
    example = distinct(lambda: _letters(rng, string.ascii_uppercase, 3), HOPS + 1)
    context = _chain_text(random.Random(f"{seed}/example"), example, example_value, EXAMPLE_SENTENCES)
    solved = f"{context}{_chain_question(example_value)}{_chain_answer(example_value)} {' '.join(example)}\n\n"

    def build(n: int) -> Sample:
        return Sample(
            task="ruler/vt",
            index=index,
            context=solved + _chain_text(random.Random(f"{seed}/places"), names, value, n),
            question=_chain_question(value),
            answers=tuple(names),
            new_tokens=30,
            prefix=_chain_answer(value),
            details={"needles": HOPS + 1},
        )

    return build


def _letters(rng: random.Random, alphabet: str, count: int) -> str:
    return "".join(rng.choices(alphabet, k=count))


def _chain_text(rng: random.Random, names: list[str], value: str, sentences: int) -> str:
    statements = [f"VAR {names[0]} = {value}", *(f"VAR {new} = VAR {old}" for old, new in zip(names, names[1:]))]
    lines = prose.insert(prose.noise(sentences), statements, sorted(rng.random() for _ in statements))
    return "Keep track of the variables that are assigned in the following text.\n\n" + "\n".join(lines) + "\n"


def _chain_question(value: str) -> str:
    return f"Question: Which variables have the value {value} in the text above?"


def _chain_answer(value: str) -> str:
    return f" Answer: By the assignments in the text above, {HOPS + 1} variables have the value {value}:"


def common_words(index: int, seed: str, tokens: int) -> Builder:
    """`cwe`: which ten words of a numbered list occur most often? 30 times against 3, or 6 against 1 in less than 4,096
    tokens. A short solved example comes first."""
    often, seldom, example_often, example_seldom, example_words = (30, 3, 10, 3, 40) if tokens >= LONG else (6, 1, 3, 1, 20)
    common = list_words(random.Random(seed), COMMON, COMMON)
    example = list_words(random.Random(f"{seed}/example"), example_words, COMMON, common)
    answer = " ".join(f"{i}. {word}" for i, word in enumerate(example[:COMMON], 1))
    context = _word_list(random.Random(f"{seed}/order of the example"), example, example_often, example_seldom)
    solved = f"{context}{COMMON_QUESTION}{COMMON_ANSWER} {answer}\n\n"

    def build(n: int) -> Sample:
        words = list_words(random.Random(seed), COMMON + n, COMMON)
        return Sample(
            task="ruler/cwe",
            index=index,
            context=solved + _word_list(random.Random(f"{seed}/order"), words, often, seldom),
            question=COMMON_QUESTION,
            answers=tuple(words[:COMMON]),
            new_tokens=120,
            prefix=COMMON_ANSWER,
            details={"words": len(words)},
        )

    return build


COMMON_QUESTION = f"Question: Which {COMMON} words occur most often in the list above?"
COMMON_ANSWER = f" Answer: The {COMMON} words that occur most often in the list are:"


def _word_list(rng: random.Random, words: list[str], often: int, seldom: int) -> str:
    entries = words[:COMMON] * often + words[COMMON:] * seldom
    rng.shuffle(entries)
    listed = " ".join(f"{i}. {word}" for i, word in enumerate(entries, 1))
    return f"In the numbered list of words below, some occur more often than others. Note which they are.\n{listed}\n"


def frequent_words(index: int, seed: str, tokens: int) -> Builder:
    """`fwe`: which three made-up words of a text occur most often? The frequencies follow a zeta distribution with exponent
    2, in which dots take the first rank."""
    rng = random.Random(seed)
    words = distinct(lambda: _letters(rng, string.ascii_lowercase, LETTERS), max(FREQUENT + 1, tokens // TOKENS_PER_WORD))

    def build(n: int) -> Sample:
        shares = [n / (rank**2 * math.pi**2 / 6) for rank in range(1, len(words) + 1)]
        text = [word for word, share in zip(["...", *words], shares) for _ in range(int(share))]
        random.Random(f"{seed}/order").shuffle(text)
        return Sample(
            task="ruler/fwe",
            index=index,
            context=f"Count how often each made-up word occurs in the following text. {' '.join(text)}\n",
            question=FREQUENT_QUESTION,
            answers=tuple(words[:FREQUENT]),
            new_tokens=50,
            prefix=" Answer: By the text above, the three words that occur most often are:",
            details={"words": len({*text})},
        )

    return build


FREQUENT_QUESTION = (
    "Question: Which three made-up words occur most often in the text above? Do not count the dots '...', explain nothing."
)
