"""What one job does with a batch of prompts: it reads them, and lets every method answer. Each result goes to the folder at
once."""

from __future__ import annotations

import dataclasses
import shutil
import time

import engine as engines
import sampling
import task_list
from llama_host import HostError
from session import SessionError

ESTIMATE_COVERAGE = ("locks", "oracle", "two_bit", "shared_basis")
MUST_SEE_PROMPTS = ("rocketkv",)  # it evicts what the prompt's end does not look at, and only of what it saw written
# What one prompt and method may end with: the host's refusals, a process that died, a score that cannot be made or written.
# A setting that is wrong for all of them has been refused before.
FAILURES = (HostError, SessionError, MemoryError, OSError, RuntimeError, ValueError, ArithmeticError)


@dataclasses.dataclass
class Worker:
    """A reader and, one after the other, an engine for each method. `make_engine(settings)` starts one."""

    jobs: object
    make_engine: object
    config: object
    methods: dict  # by name, settings
    folder: object
    estimate: object
    scratch: object  # a path: files of this worker alone
    _reader: object = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._reader:
            self.jobs.close(self._reader)

    def do(self, batch):
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        jobs = self._read(batch.pairs)
        for name, settings in self.methods.items():
            waiting = [(pair[0], jobs[number]) for number, pair in enumerate(batch.pairs) if number in jobs and name in pair[1]]
            self._answer(name, settings, waiting)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _read(self, pairs):
        """The jobs of the prompts that could be read, by their number."""
        jobs = {}
        self._reader = self._reader or self._start({"selector": "dense"})
        for number, (item, missing) in enumerate(pairs):
            self.estimate.show(f"reading {item.task.label}, {item.index}")
            job = make_job(self.config, item, self.scratch, number)
            try:
                self.jobs.check()
                self.estimate.has_read(item, self._reader.read(job))
            except FAILURES as error:
                self.jobs.check()
                for name in missing:
                    self._record_failure(item, name, error)
                self._reader.restart()
                continue
            jobs[number] = job
        return jobs

    def _answer(self, name, settings, waiting):
        engine = None
        anew = reads_itself(settings)
        try:
            for item, job in waiting:
                self.estimate.show(f"{name}: {item.task.label}, {item.index}")
                try:
                    self.jobs.check()
                    engine = engine or self._start(settings)
                    started = time.monotonic()
                    outcome = engine.answer(dataclasses.replace(job, read_anew=anew))
                    self.folder.append(base_of(item, name) | describe_result(item, outcome, settings))
                except FAILURES as error:
                    self.jobs.check()
                    self._record_failure(item, name, error)
                    if engine:
                        self.jobs.close(engine)
                    engine = None
                    continue
                seconds = time.monotonic() - started
                if anew:
                    self.estimate.has_read(item, seconds - outcome.seconds)
                    seconds = outcome.seconds
                self.estimate.has_answered(item, seconds)
        finally:
            if engine:
                self.jobs.close(engine)

    def _start(self, settings):
        return self.jobs.own(self.make_engine(settings))

    def _record_failure(self, item, name, error):
        self.folder.append({**base_of(item, name), "failed": f"{type(error).__name__}: {error}"})
        self.estimate.has_answered(item, 0, failed=True)


def make_job(config, item, scratch, number):
    sparse_question = config.protocol == "question-sparse"
    return engines.Job(
        cache=scratch / f"{number}.cache.npy",
        rows=scratch / f"{number}.rows.npy",
        context=item.context,
        question=item.question,
        new_tokens=item.sample.new_tokens,
        sampling=sampling.of(item.task, item.sample, config.seed),
        forced=item.forced,
        prompt_dense=not sparse_question and not item.forced,
        kl_rows=item.kl_rows(config.protocol),
        trajectory=scratch / f"{number}.trajectory.npy" if item.replayed else None,
    )


def reads_itself(settings):
    """Whether the saved cache, which is f16 and was written unseen, is none for this method."""
    return settings.get("selector") in MUST_SEE_PROMPTS or settings.get("cache_type", "f16") != "f16"


def base_of(item, method):
    return {"task": item.task.label, "name": item.task.name, "index": item.index, "method": method}


def describe_result(item, outcome, settings):
    """The line of one result. Bytes are means over the decode steps, of all layers together; what dense attention would
    have read is that of an f16 cache, whatever the method's own is."""
    counted = outcome.statistics
    steps = max(counted["decode_steps"], 1)
    selector = settings.get("selector", "locks")
    estimates = selector in ESTIMATE_COVERAGE and counted["decode_steps"] > 0
    own_number = engines.NUMBER_BYTES[settings.get("cache_type", "f16")]
    result = {
        "score": task_list.score(item, outcome.text, outcome),
        "prediction": outcome.text,
        "answers": list(item.sample.answers),
        "details": item.sample.details,
        "context_tokens": len(item.context),
        "question_tokens": len(item.question),
        "new_tokens": outcome.new_tokens,
        "cut_off": 0 < item.sample.new_tokens == outcome.new_tokens,
        "steps": counted["decode_steps"],
        "attended_tokens": counted["attended_tokens"],
        "score_bytes": counted["score_bytes"] / steps,
        "attend_bytes": (counted["attend_bytes"] + counted["complete_bytes"]) / steps,
        "dense_bytes": counted["dense_bytes"] / steps * engines.NUMBER_BYTES["f16"] / own_number,
        "cache_bytes": counted["dense_bytes"] / steps,
        "held_bytes": counted["held_bytes"] / steps,
        "coverage": counted["coverage"] if estimates else None,
        "coverage_by_head": _rounded(counted["coverage_by_head"]) if estimates else None,
        "seconds": outcome.seconds,
    }
    if outcome.kl:
        result |= {"kl": sum(outcome.kl) / len(outcome.kl), "same": sum(outcome.same) / len(outcome.same)}
    if item.forced:
        result |= {"nll": sum(outcome.nll) / len(outcome.nll), "kl_positions": [float(f"{kl:.5g}") for kl in outcome.kl]}
    if item.replayed:
        result["same_positions"] = [int(same) for same in outcome.same]
        result["ended_early"] = len(outcome.kl) < item.task.positions
    return result


def _rounded(layers):
    return [[round(share, 4) for share in layer] for layer in layers]
