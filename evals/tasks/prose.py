"""Text to hide things in: a few sentences over and over, made-up prose without end, or a file of the user's."""

from __future__ import annotations

import bisect
import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tasks.errors import TaskError
from tasks.words import ADJECTIVES, NOUNS, VERBS

NOISE = ("The kettle is warm.", "The lane is quiet.", "The paint is dry.", "We wait a while.", "Then we walk home.")

NAMES = """
Ada Albin Beata Bruno Carla Cosmo Dina Edgar Elsa Felix Flora Gerd Greta Hanna Hugo Ida Igor Ilse Jonas Karin Klara Lena Leo
Livia Magda Marek Mina Nils Nora Olaf Orla Petra Ralf Rosa Sven Tilda Tomas Ulla Vera Viggo Wanda Yorick Zelda
""".split()
TIMES = """
in the morning|after lunch|before sunset|late at night|on the first day of spring|when the rain had stopped|
without saying why|for the third time|as everybody expected|while the others slept|a little too early|
at the end of the season
""".replace("\n", "").split("|")
SENTENCES = (
    "{name} wanted to {verb} the {adjective} {noun} {time}.",
    "The {noun} behind the {adjective} {other} belonged to {name}.",
    "Nobody in the {other} knew why {name} would {verb} a {noun}.",
    "{time_first}, {name} began to {verb} what was left of the {noun}.",
    "It is easier to {verb} a {adjective} {noun} than to {second_verb} one.",
    '"You should {verb} the {noun}," said {name}, "and leave the {other} alone."',
    "A {noun} is never as {adjective} as the {other} beside it.",
    "{name} had learned from {friend} how to {verb} and {second_verb} every {noun} of the {other}.",
    "There was a {adjective} {noun} near the {other}, and {name} did not {verb} it {time}.",
    "If the {noun} were {adjective}, {friend} thought, one could {verb} it {time}.",
    "What {name} remembered of the {other} was mostly its {adjective} {noun}.",
    "They agreed to {verb} the {other} first and to {second_verb} the {noun} {time}.",
    "Of all that {friend} owned, only the {noun} was {adjective}.",
    "Years later {name} could still {verb} the {noun}, though the {other} was gone.",
)


def noise(count: int) -> list[str]:
    """`count` sentences, the same few in turn."""
    return [NOISE[i % len(NOISE)] for i in range(count)]


class Text:
    """A text without end, of which one takes as many words as one wants."""

    def __init__(self, sentences: Iterator[str]):
        self._more = sentences
        self._sentences: list[str] = []
        self._words: list[int] = []  # up to the end of each sentence

    def __call__(self, words: int) -> list[str]:
        """The sentences of the first `words` words, the last of which may be cut short."""
        while not self._words or self._words[-1] < words:
            sentence = next(self._more)
            self._sentences.append(sentence)
            self._words.append(len(sentence.split()) + (self._words[-1] if self._words else 0))
        last = bisect.bisect_left(self._words, words)
        before = self._words[last - 1] if last else 0
        cut = " ".join(self._sentences[last].split()[: words - before])
        return self._sentences[:last] + ([cut] if cut else [])


def made_up(rng: random.Random) -> Text:
    """Prose that nobody wrote."""
    return Text(_sentence(rng) for _ in itertools.count())


def from_file(path: str | Path) -> Text:
    """A text file; one that is too short is read again from its beginning."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not a UTF-8 text file: {error.reason} at byte {error.start}") from error
    sentences = [*filter(None, re.split(r"(?<=[.!?])\s+|(?<=[。！？])", " ".join(text.split())))]
    if not sentences:
        raise TaskError(f"{path} has no text")
    return Text(itertools.cycle(sentences))


def insert(sentences: list[str], needles: list[str], depths: list[float]) -> list[str]:
    """The sentences with each needle at the boundary that is nearest to its depth: the share of characters before it. Depths
    ascend."""
    ends = [0, *itertools.accumulate(len(sentence) + 1 for sentence in sentences)]
    result, done = [], 0
    for needle, depth in zip(needles, depths):
        place = bisect.bisect_left(ends, depth * ends[-1])
        if place > 0 and (place == len(ends) or depth * ends[-1] - ends[place - 1] < ends[place] - depth * ends[-1]):
            place -= 1
        result += [*sentences[done:place], needle]
        done = max(done, place)
    return result + sentences[done:]


def _sentence(rng: random.Random) -> str:
    time = rng.choice(TIMES)
    return rng.choice(SENTENCES).format(
        name=rng.choice(NAMES),
        friend=rng.choice(NAMES),
        verb=rng.choice(VERBS),
        second_verb=rng.choice(VERBS),
        adjective=rng.choice(ADJECTIVES),
        noun=rng.choice(NOUNS),
        other=rng.choice(NOUNS),
        time=time,
        time_first=time[0].upper() + time[1:],
    )
