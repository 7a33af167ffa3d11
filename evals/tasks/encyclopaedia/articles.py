"""Paragraphs of an encyclopaedia about what does not exist."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.encyclopaedia import book, company, names, person, river, ship, town
from tasks.encyclopaedia.fact import Fact
from tasks.encyclopaedia.slots import TRADES, fill

FACTS_OF_A_PARAGRAPH = (3, 4)
FACTS_OF_A_SUMMARY = (3, 4, 5)  # beside the one that it must tell
SHARE_OF_SHORT_NAMES = 0.6


@dataclass(frozen=True)
class Kind:
    paragraphs: tuple[tuple[Fact, ...], ...]
    years: tuple[int, int]  # that an article may count from
    full: str = "{}"
    short: str = ""  # how a paragraph goes on; of people it is the last word of the name
    another: str = ""  # the slot that has another of this kind, behind which `short` would be unclear


KINDS = {
    "town": Kind(town.PARAGRAPHS, (1500, 1750), short="the town", another="town"),
    "river": Kind(river.PARAGRAPHS, (1500, 1700), "the River {}", "the river", "tributary"),
    "person": Kind(person.PARAGRAPHS, (1650, 1850)),
    "company": Kind(company.PARAGRAPHS, (1750, 1800), short="the company", another="rival"),
    "book": Kind(book.PARAGRAPHS, (1720, 1880), '"The {}"', "the book"),
    "ship": Kind(ship.PARAGRAPHS, (1750, 1860), "the {}", "the ship"),
}


@dataclass(frozen=True)
class Subject:
    kind: str
    name: str
    year: int  # that the article counts from
    trade: str  # of a person

    @property
    def full(self) -> str:
        return KINDS[self.kind].full.format(self.name)

    @property
    def short(self) -> str:
        return KINDS[self.kind].short or self.name.split()[-1]


@dataclass(frozen=True)
class Paragraph:
    subject: Subject
    text: str
    told: tuple[tuple[Fact, dict[str, str]], ...]  # with what is in the slots

    def value(self, fact: Fact, slot: str) -> str:
        return next(values[slot] for told, values in self.told if told == fact)

    @property
    def titled(self) -> str:
        return f"{_capital(self.subject.full)}\n{self.text}"


def subject(kind: str, rng: random.Random, name: str = "", year: int | None = None, trade: str = "") -> Subject:
    return Subject(
        kind,
        name or names.BY_KIND[kind](rng),
        rng.randint(*KINDS[kind].years) if year is None else year,
        trade or rng.choice(TRADES),
    )


def paragraph(about: Subject, facts: list[Fact], rng: random.Random) -> Paragraph:
    told = [(fact, _values(about, fact, rng)) for fact in facts]
    sentences = []
    clear = False
    for fact, values in told:
        called = about.short if clear and rng.random() < SHARE_OF_SHORT_NAMES else about.full
        sentences.append(_capital(rng.choice(fact.sentences).format(s=called, **values)))
        clear = KINDS[about.kind].another not in values
    return Paragraph(about, " ".join(sentences), tuple(told))


def article(about: Subject, rng: random.Random) -> list[Paragraph]:
    """A paragraph on each side of it."""
    return [paragraph(about, _some(facts, FACTS_OF_A_PARAGRAPH, rng), rng) for facts in KINDS[about.kind].paragraphs]


def summary(about: Subject, rng: random.Random, must_tell: Fact) -> Paragraph:
    """One paragraph on all sides of it."""
    facts = all_facts(about.kind)
    others = _some([fact for fact in facts if fact != must_tell], FACTS_OF_A_SUMMARY, rng)
    return paragraph(about, [fact for fact in facts if fact == must_tell or fact in others], rng)


def all_facts(kind: str) -> tuple[Fact, ...]:
    return tuple(fact for facts in KINDS[kind].paragraphs for fact in facts)


def _some(facts: Sequence[Fact], counts: tuple[int, ...], rng: random.Random) -> list[Fact]:
    """As many of the facts as one of the counts says, in their order."""
    return [facts[i] for i in sorted(rng.sample(range(len(facts)), rng.choice(counts)))]


def _values(about: Subject, fact: Fact, rng: random.Random) -> dict[str, str]:
    return {slot: about.trade if slot == "trade" else fill(slot, about.year, rng) for slot in fact.slots}


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
