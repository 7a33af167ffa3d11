"""Questions about invented documents: about one paragraph of an article (`qa_1`), as in SQuAD, or about two articles, the
first of which names the second (`qa_2`), as in HotpotQA."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tasks.encyclopaedia.articles import KINDS, Paragraph, all_facts, article, subject, summary
from tasks.encyclopaedia.fact import Fact
from tasks.encyclopaedia.slots import LINKS

RELATED_DOCUMENTS = 8  # which make ten with those of the question, as in HotpotQA


@dataclass(frozen=True)
class Asked:
    question: str
    answer: str
    documents: tuple[str, ...]  # what the answer is in
    names: tuple[str, ...]  # of what is asked about
    same_article: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chain:
    """How one document leads to another, and what is asked about that."""

    kind: str  # of the first
    fact: Fact  # whose slot `link` names the second
    link: str
    asked: Fact
    slot: str  # that is the answer


LINKED_FACTS = [(kind, fact, slot) for kind in KINDS for fact in all_facts(kind) for slot in fact.slots if slot in LINKS]


def about_one(rng: random.Random) -> tuple[Asked, Iterator[str]]:
    """The question, and documents without end that do not answer it; those that are most like its own come first."""
    asked = _unambiguous(lambda: _ask_about_one(rng))
    return asked, itertools.chain(asked.same_article, _unrelated(asked, _articles(rng)))


def about_two(rng: random.Random) -> tuple[Asked, Iterator[str]]:
    """Likewise."""
    chain = draw_chain(rng)
    asked = _unambiguous(lambda: _ask_about_two(chain, rng))
    same_chain = _unrelated(asked, (_titled_pair(chain, rng) for _ in itertools.count()))
    any_chain = _unrelated(asked, (_titled_pair(draw_chain(rng), rng) for _ in itertools.count()))
    return asked, itertools.chain(itertools.islice(same_chain, RELATED_DOCUMENTS), any_chain)


MADE_UP = {"qa_1": about_one, "qa_2": about_two}


def _unambiguous(ask: Callable[[], Asked]) -> Asked:
    """Chance may put the answer into the question, or into the documents twice."""
    while True:
        asked = ask()
        texts = [asked.question, *asked.documents, *asked.same_article]
        if sum(text.lower().count(asked.answer.lower()) for text in texts) == 1:
            return asked


def _unrelated(asked: Asked, groups: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """The documents of groups in which neither the answer occurs nor what is asked about."""
    unwanted = [name.lower() for name in (asked.answer, *asked.names)]
    for documents in groups:
        if not any(name in document.lower() for name in unwanted for document in documents):
            yield from documents


def _ask_about_one(rng: random.Random) -> Asked:
    about = subject(rng.choice([*KINDS]), rng)
    paragraphs = article(about, rng)
    asked = rng.choice(paragraphs)
    fact, values = rng.choice([(fact, values) for fact, values in asked.told if fact.questions])
    slot = rng.choice([*fact.questions])
    return Asked(
        question=fact.questions[slot].format(s=about.full),
        answer=values[slot],
        documents=(asked.text,),
        names=(about.name,),
        same_article=tuple(paragraph.text for paragraph in paragraphs if paragraph != asked),
    )


def _ask_about_two(chain: Chain, rng: random.Random) -> Asked:
    first, second = _pair(chain, rng)
    phrase = LINKS[chain.link].phrase.format(s=first.subject.full)
    return Asked(
        question=chain.asked.questions[chain.slot].format(s=phrase),
        answer=second.value(chain.asked, chain.slot),
        documents=(first.titled, second.titled),
        names=(first.subject.name, second.subject.name),
    )


def _articles(rng: random.Random) -> Iterator[tuple[str, ...]]:
    while True:
        yield tuple(paragraph.text for paragraph in article(subject(rng.choice([*KINDS]), rng), rng))


def _titled_pair(chain: Chain, rng: random.Random) -> tuple[str, ...]:
    return tuple(paragraph.titled for paragraph in _pair(chain, rng))


def _pair(chain: Chain, rng: random.Random) -> tuple[Paragraph, Paragraph]:
    link = LINKS[chain.link]
    first = summary(subject(chain.kind, rng), rng, chain.fact)
    year = None if link.earlier is None else first.subject.year - link.earlier
    second = subject(link.kind, rng, first.value(chain.fact, chain.link), year, link.trade)
    return first, summary(second, rng, chain.asked)


def draw_chain(rng: random.Random) -> Chain:
    kind, fact, link = rng.choice(LINKED_FACTS)
    asked = rng.choice([fact for fact in all_facts(LINKS[link].kind) if fact.questions])
    return Chain(kind, fact, link, asked, rng.choice([*asked.questions]))
