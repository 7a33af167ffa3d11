"""Samples of a wanted length: the prompt and the new tokens together, as RULER counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sample import Sample
from tasks.errors import TaskError

CountTokens = Callable[[str], int]

CLOSE = 0.005  # a sample this much shorter than asked for is long enough
BEND = 8  # after so many guesses the search stops trusting straight lines and halves
MAX_GUESSES = 64
FIRST_STEP = 64  # more tokens than a unit of any noise has


GOLDEN = 0.6180339887498949


def spread(index: int) -> float:
    """Depths from 0 to 1 that are even, however many there are: multiples of the golden section."""
    return (index + 1) * GOLDEN % 1


def prompt(sample: Sample) -> str:
    """All that a model reads."""
    return sample.context + sample.question + sample.prefix


class Sizing:
    """Fits samples into `tokens`. Each fit begins where the last one ended, so that later ones need few counts."""

    def __init__(self, tokens: int, count_tokens: CountTokens):
        self.tokens = tokens
        self.count_tokens = count_tokens
        self._guess = 0
        self._slope = 0.0

    def fit(self, build: Callable[[int], Sample]) -> Sample:
        """The largest `build(n)` that fits, or one that is nearly as large. `build(n)` grows with n."""
        low, high = self._fitting(build)
        for guesses in range(MAX_GUESSES):
            if low[1] >= self.tokens * (1 - CLOSE) or (high and high[0] - low[0] <= 1):
                break
            measured = self._measure(build, self._next(low, high, guesses))
            self._slope = (measured[1] - low[1]) / (measured[0] - low[0])
            if measured[1] <= self.tokens:
                low = measured
            else:
                high = measured
        self._guess = low[0]
        _, size, sample = low
        return replace(
            sample, details={"length": self.tokens, **sample.details, "prompt_tokens": size - sample.new_tokens}
        )

    def _fitting(self, build):
        """A measurement that fits, and one that does not, or None."""
        high = None
        if self._guess:
            low = self._measure(build, self._guess)
            if low[1] <= self.tokens:
                return low, None
            high = low
        low = self._measure(build, 0)
        if low[1] > self.tokens:
            task = low[2].task
            raise TaskError(f"{task} needs at least {low[1]} tokens, new ones included, but {self.tokens} were asked for")
        return low, high

    def _measure(self, build, n):
        sample = build(n)
        return n, self.count_tokens(prompt(sample)) + sample.new_tokens, sample

    def _next(self, low, high, guesses: int) -> int:
        if high and guesses >= BEND:
            return (low[0] + high[0]) // 2
        room = self.tokens * (1 - CLOSE / 2) - low[1]
        # Before anything is known, a step so small that it will fit.
        step = room / self._slope if self._slope > 0 else room / FIRST_STEP
        n = low[0] + max(1, int(step))
        return min(n, high[0] - 1) if high else n


def cut_middle(sample: Sample, tokens: int, count_tokens: CountTokens) -> Sample:
    """The sample with the middle of its context left out so that it fits, as LongBench and InfiniteBench cut what is too
    long; the same sample if it fits."""
    if count_tokens(prompt(sample)) + sample.new_tokens <= tokens:
        return sample
    context = sample.context

    def build(kept: int) -> Sample:
        kept = min(kept, len(context))
        half = kept // 2
        short = context[: kept - half] + context[len(context) - half :]
        return replace(sample, context=short, details={**sample.details, "cut": True})

    return Sizing(tokens, count_tokens).fit(build)
