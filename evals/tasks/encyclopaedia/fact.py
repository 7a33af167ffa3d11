"""What articles of an invented encyclopaedia say, and what can be asked about it. The facts are in a file for
each kind of subject."""

from __future__ import annotations

import string
from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """`{s}` is what the article is about; other names in braces are slots (slots.py). Each sentence has all slots that are
    asked for, and no other fact of the article answers their questions."""

    sentences: tuple[str, ...]  # ways to say it
    questions: dict[str, str]  # by the slot that is the answer

    @property
    def slots(self) -> tuple[str, ...]:
        found = (slot for sentence in self.sentences for _, slot, _, _ in string.Formatter().parse(sentence))
        return tuple(dict.fromkeys(slot for slot in found if slot and slot != "s"))


def fact(*sentences: str, **questions: str) -> Fact:
    return Fact(sentences, questions)
