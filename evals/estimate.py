"""How far a run is, and how long the rest will take, by what its own reading and decoding took so far."""

from __future__ import annotations

import threading

from progress import Progress

# Until something was measured: a small model on two cores.
READ_SECONDS, STEP_SECONDS = 1 / 150, 1 / 30


class Estimate:
    def __init__(self, rest, protocol, done, total, shown=True, readers=(), jobs=1):
        """`rest` are pairs of a work and the methods that it still lacks; `readers` are those that read contexts again.
        `jobs` prompts are worked on at the same time, whose threads may call it as they like."""
        self._protocol, self._readers, self._jobs = protocol, readers, jobs
        self._lock = threading.RLock()
        self._read_left = sum(self._tokens_to_read(item, missing) for item, missing in rest)
        self._steps_left = sum(item.steps(protocol) * len(missing) for item, missing in rest)
        self._read_done = self._read_seconds = self._steps_done = self._step_seconds = 0.0
        self._done = done
        self._progress = Progress("eval", total, "results") if shown else None

    def _tokens_to_read(self, item, missing):
        return len(item.context) * (1 + sum(name in self._readers for name in missing))

    def seconds_of(self, item, missing):
        """What a prompt will take, before anything was measured: good for comparisons."""
        return READ_SECONDS * self._tokens_to_read(item, missing) + STEP_SECONDS * item.steps(self._protocol) * len(missing)

    def has_read(self, item, seconds):
        with self._lock:
            self._read_left -= len(item.context)
            self._read_done += len(item.context)
            self._read_seconds += seconds

    def has_answered(self, item, seconds, failed=False):
        with self._lock:
            self._steps_left -= item.steps(self._protocol)
            self._done += not failed
            if not failed:
                self._steps_done += item.steps(self._protocol)
                self._step_seconds += seconds
            self.show("")

    def seconds_left(self):
        read = self._read_seconds / self._read_done if self._read_done else READ_SECONDS
        step = self._step_seconds / self._steps_done if self._steps_done else STEP_SECONDS
        return (self._read_left * read + self._steps_left * step) / self._jobs

    def show(self, what):
        with self._lock:
            if self._progress:
                more = f"; {what}" if what else ""
                self._progress.update(self._done, f", about {in_words(self.seconds_left())} left{more}")


def in_words(seconds):
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{max(round(seconds), 0)} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
