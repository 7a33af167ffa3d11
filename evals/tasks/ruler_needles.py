"""RULER's eight needle tasks: sentences that give keys their values, hidden in noise, in prose, or among their like."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from sample import Sample
from tasks import prose
from tasks.words import distinct, identifier, key_words, number

NEW_TOKENS = 128
DIGITS = 7
DEPTHS = 40  # needles lie at different multiples of 1/40 of the text
# What fills the room in which no further needle fits, where needles are the noise.
FILLER = "Nothing is noted here."


@dataclass(frozen=True)
class Kind:
    haystack: str  # noise, prose or needles
    keys: int = 1
    values: int = 1  # of each key
    queries: int = 1
    key: Callable[[random.Random], str] = key_words
    value: Callable[[random.Random], str] = lambda rng: number(rng, DIGITS)
    noun: str = "number"
    fillers: int = 0  # about so many fillers are as long as a needle


KINDS = {
    "niah_single_1": Kind("noise"),
    "niah_single_2": Kind("prose"),
    "niah_single_3": Kind("prose", value=identifier, noun="identifier"),
    "niah_multikey_1": Kind("prose", keys=4),
    "niah_multikey_2": Kind("needles", fillers=4),
    "niah_multikey_3": Kind("needles", key=identifier, value=identifier, noun="identifier", fillers=10),
    "niah_multivalue": Kind("prose", values=4),
    "niah_multiquery": Kind("prose", keys=4, queries=4),
}


@dataclass(frozen=True)
class Needles:
    asked: dict[str, list[str]]  # the values of the keys that the question names
    sentences: list[tuple[str, bool]]  # each with whether it is asked for


def builder(task: str, index: int, seed: str, text: Callable[[int], list[str]] | None) -> Callable[[int], Sample]:
    """Makes the sample with n words of prose, or n sentences of noise."""
    kind = KINDS[task]
    needles = hide(kind, random.Random(seed))

    def build(n: int) -> Sample:
        rng = random.Random(f"{seed}/places")
        sentences = text(n) if text else _distractors(kind, needles, n, seed)
        return _sample(task, index, kind, needles, sentences, rng)

    return build


def hide(kind: Kind, rng: random.Random) -> Needles:
    """The needles of one sample in random order."""
    keys = distinct(lambda: kind.key(rng), kind.keys)
    values = distinct(lambda: kind.value(rng), kind.keys * kind.values)
    asked = set(rng.sample(keys, kind.queries))
    of_key = {key: values[i * kind.values : (i + 1) * kind.values] for i, key in enumerate(keys)}
    sentences = [(_needle(kind, key, value), key in asked) for key in keys for value in of_key[key]]
    rng.shuffle(sentences)
    return Needles({key: of_key[key] for key in keys if key in asked}, sentences)


def _needle(kind: Kind, key: str, value: str) -> str:
    return f"One of the registered {kind.noun}s for {key} is: {value}."


def _distractors(kind: Kind, needles: Needles, n: int, seed: str) -> list[str]:
    rng = random.Random(f"{seed}/distractors")
    used = {*needles.asked, *(value for values in needles.asked.values() for value in values)}
    sentences = []
    while len(sentences) < n // kind.fillers:
        key, value = kind.key(rng), kind.value(rng)
        if not used & {key, value}:
            sentences.append(_needle(kind, key, value))
    return sentences + [FILLER] * (n % kind.fillers)


def _sample(task, index, kind, needles, sentences, rng) -> Sample:
    depths = sorted(rng.sample(range(DEPTHS + 1), len(needles.sentences)))
    parts = prose.insert(sentences, [sentence for sentence, _ in needles.sentences], [depth / DEPTHS for depth in depths])
    separator = " " if kind.haystack == "prose" else "\n"
    several = kind.queries * kind.values > 1
    noun = f"registered {kind.noun}{'s' if several else ''}"
    some, verb, them = ("Some", "are", "them") if several else ("A", "is", "it")
    keys = _listed(list(needles.asked))
    intro = f"{some} {noun} {verb} hidden in the following text. Keep {them} in mind, you will be asked about {them} later."
    found = [depth / DEPTHS for depth, (_, asked) in zip(depths, needles.sentences) if asked]
    return Sample(
        task=f"ruler/{task}",
        index=index,
        context=f"{intro}\n{separator.join(parts)}\n",
        question=f"What {verb}{' all' if several else ''} the {noun} for {keys} in the text above?",
        answers=tuple(value for values in needles.asked.values() for value in values),
        new_tokens=NEW_TOKENS,
        prefix=f" The {noun} for {keys} in the text above {verb}",
        details={"needles": len(needles.sentences), **({"depth": found[0]} if len(found) == 1 else {"depths": found})},
    )


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, and {words[-1]}"
