"""Prompts that are worked on at the same time: a thread for each job, which takes the next batch when it is done with one.
What computes is the engines, which are processes."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass

BATCHES_OF_A_JOB = 4  # at least, so that no job is left alone with much work at the end


class Stopped(Exception):
    """The run ends. Nothing more is begun, and what an ended engine says is nobody's failure."""


@dataclass
class Batch:
    """Pairs of a work and the methods that it still lacks, whose caches are on the disk at the same time."""

    pairs: list
    bytes: int


def batches(rest, jobs, cache_bytes, bytes_of, seconds_of):
    """The work in batches whose caches fit a job's part of `cache_bytes`; larger ones are alone. One job keeps to the order.
    Several begin with the longest prompts, and have batches enough to share them evenly."""
    if jobs > 1:
        rest = sorted(rest, key=lambda pair: -seconds_of(*pair))
    most_seconds = sum(seconds_of(*pair) for pair in rest) / (BATCHES_OF_A_JOB * jobs) if jobs > 1 else float("inf")
    made, seconds = [], 0.0
    for item, missing in rest:
        size, length = bytes_of(item), seconds_of(item, missing)
        if made and made[-1].bytes + size <= cache_bytes // jobs and seconds + length <= most_seconds:
            made[-1].pairs.append((item, missing))
            made[-1].bytes += size
            seconds += length
        else:
            made.append(Batch([(item, missing)], size))
            seconds = length
    return made


class Jobs:
    """`count` threads, whose batches on the disk never exceed `cache_bytes` together, but for one that is larger alone."""

    def __init__(self, count, cache_bytes):
        self._count, self._cache_bytes = count, cache_bytes
        self._changed = threading.Condition()
        self._used = 0
        self._engines = set()
        self._stopped = False
        self._error = None

    def run(self, waiting, make_worker):
        """Does all batches, with a worker (a context manager with `do(batch)`) of `make_worker(number)` in each thread. What
        a worker raises, or an interruption, ends the others and their engines, and is raised here."""
        waiting, threads = list(waiting), []
        try:
            for number in range(min(self._count, len(waiting))):
                thread = threading.Thread(target=self._work, args=(number, waiting, make_worker), daemon=True)
                thread.start()
                threads.append(thread)
            for thread in threads:
                thread.join()
        except BaseException:
            self._stop()
            raise
        finally:
            for thread in threads:
                thread.join()
        if self._error:
            raise self._error

    def own(self, engine):
        """The engine, which is ended when the run is."""
        with self._changed:
            self._engines.add(engine)
            stopped = self._stopped
        if stopped:
            self.close(engine)
            raise Stopped
        return engine

    def close(self, engine):
        engine.close()
        with self._changed:
            self._engines.discard(engine)

    def check(self):
        if self._stopped:
            raise Stopped

    def _work(self, number, waiting, make_worker):
        # Processes inherit it: Ctrl-C in a terminal is for the run alone, which ends them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with make_worker(number) as worker:
                while batch := self._take(waiting):
                    try:
                        worker.do(batch)
                    finally:
                        self._give_back(batch)
        except Stopped:
            pass
        except BaseException as error:
            self._stop(error)

    def _take(self, waiting):
        """The first batch that there is room for; None where all are taken."""
        with self._changed:
            while True:
                self.check()
                if not waiting:
                    return None
                for batch in waiting:
                    if not self._used or self._used + batch.bytes <= self._cache_bytes:
                        waiting.remove(batch)
                        self._used += batch.bytes
                        return batch
                self._changed.wait()

    def _give_back(self, batch):
        with self._changed:
            self._used -= batch.bytes
            self._changed.notify_all()

    def _stop(self, error=None):
        with self._changed:
            self._stopped = True
            self._error = self._error or error
            for engine in self._engines:
                engine.kill()
            self._changed.notify_all()
