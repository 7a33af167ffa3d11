"""One question about one context, and what answers count."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """`context` is what a model reads first (and what sparse attention selects from); `question` comes behind it.

    The prompt is context + question as they stand; generators write the line breaks. `prefix` is given to the model as the
    beginning of its answer."""

    task: str
    index: int
    context: str
    question: str
    answers: tuple[str, ...]
    new_tokens: int
    prefix: str = ""
    details: dict = field(default_factory=dict)  # what a report groups by: length in tokens, depth, number of needles
