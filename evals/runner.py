"""A run: every prompt, every method, one result after the other."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import time
from pathlib import Path

import config as configuration
import engine as engines
import sampling
import task_list
from config import ConfigError
from estimate import Estimate
from llama_host import HostError
from results import Folder
from session import SessionError

ESTIMATE_COVERAGE = ("locks", "oracle", "two_bit", "shared_basis")
MUST_SEE_PROMPTS = ("rocketkv",)  # it evicts what the prompt's end does not look at, and only of what it saw written
HASHED_BYTES = 16 << 20
# What one prompt and method may end with: the host's refusals, a process that died, a score that cannot be made or written.
# A setting that is wrong for all of them has been refused before.
FAILURES = (HostError, SessionError, MemoryError, OSError, RuntimeError, ValueError, ArithmeticError)
SCALE_STEP = 8  # a stretched context grows by eighths of the model's own


@dataclasses.dataclass
class Run:
    """One run: what it needs from outside is given, so that a test can give something else."""

    config: configuration.Config
    model_path: str
    plugin: str
    command: str = ""
    make_engine: type = engines.Engine
    say: object = print

    def go(self):
        config = self.config
        with self.make_engine(self.model_path, self.plugin, {"selector": "dense"}, config.threads) as reader:
            facts = reader.facts()
            self._check_model(facts)
            methods = {name: complete(settings, facts) for name, settings in config.methods.items()}
            work = task_list.make_work(config, reader, facts["beginning"])
            scale = self._scale(work, facts)
            reader.stretch(scale)
            identity = self._identity(facts, methods, work, scale)
            with Folder(config.out) as folder:
                results = folder.open(identity)
                done = {(r["task"], r["index"], r["method"]) for r in results if "failed" not in r}
                rest = [
                    (item, missing)
                    for item in work
                    if (missing := [m for m in methods if (item.task.label, item.index, m) not in done])
                ]
                self._say_what(facts, methods, work, done, scale)
                folder.describe(
                    identity,
                    {
                        "facts": facts,
                        "command": self.command,
                        "model_path": Path(self.model_path).name,
                        "prompts": len(work),
                    },
                )
                readers = [name for name, settings in methods.items() if reads_itself(settings)]
                total = len(work) * len(methods)
                estimate = Estimate(rest, config.protocol, len(done), total, config.progress, readers)
                scratch = folder.path / "caches"
                try:
                    for batch in batches(rest, facts, config):
                        shutil.rmtree(scratch, ignore_errors=True)
                        scratch.mkdir()
                        self._batch(batch, reader, methods, facts, scale, folder, scratch, estimate)
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
        return folder.path

    def _batch(self, batch, reader, methods, facts, scale, folder, scratch, estimate):
        jobs = {}
        for number, (item, missing) in enumerate(batch):
            estimate.show(f"reading {item.task.label}, {item.index}")
            job = self._job(item, scratch, number)
            try:
                estimate.has_read(item, reader.read(job))
            except FAILURES as error:
                for name in missing:
                    self._record_failure(item, name, error, folder, estimate)
                reader.restart()
                continue
            jobs[number] = job
        for name, settings in methods.items():
            waiting = [number for number in jobs if name in batch[number][1]]
            engine = None
            try:
                for number in waiting:
                    item = batch[number][0]
                    estimate.show(f"{name}: {item.task.label}, {item.index}")
                    try:
                        engine = engine or self.make_engine(
                            self.model_path, self.plugin, settings, self.config.threads, scale
                        )
                        started = time.monotonic()
                        anew = reads_itself(settings)
                        outcome = engine.answer(dataclasses.replace(jobs[number], read_anew=anew))
                        folder.append(base_of(item, name) | describe_result(item, outcome, settings))
                    except FAILURES as error:
                        self._record_failure(item, name, error, folder, estimate)
                        if engine:
                            engine.close()
                        engine = None
                        continue
                    seconds = time.monotonic() - started
                    if anew:
                        estimate.has_read(item, seconds - outcome.seconds)
                        seconds = outcome.seconds
                    estimate.has_answered(item, seconds)
            finally:
                if engine:
                    engine.close()

    @staticmethod
    def _record_failure(item, name, error, folder, estimate):
        folder.append({**base_of(item, name), "failed": f"{type(error).__name__}: {error}"})
        estimate.has_answered(item, 0, failed=True)

    def _job(self, item, scratch, number):
        sparse_question = self.config.protocol == "question-sparse"
        return engines.Job(
            cache=scratch / f"{number}.cache.npy",
            rows=scratch / f"{number}.rows.npy",
            context=item.context,
            question=item.question,
            new_tokens=item.sample.new_tokens,
            sampling=sampling.of(item.task, item.sample, self.config.seed),
            forced=item.forced,
            prompt_dense=not sparse_question and not item.forced,
            kl_rows=item.kl_rows(self.config.protocol),
            trajectory=scratch / f"{number}.trajectory.npy" if item.replayed else None,
        )

    def _check_model(self, facts):
        if facts["calls_taken"] == 0:
            reasons = ", ".join(facts["declined"]) or "flash attention is off, or none of its attention is of a known kind"
            raise ConfigError(f"the plug-in takes none of this model's attention ({reasons}); see docs/LLAMACPP.md")
        if facts["declined"]:
            self.say(f"note: some attention of this model is left to llama.cpp: {', '.join(facts['declined'])}")

    def _scale(self, work, facts):
        """How far the context has to be stretched; None where the model's own is enough."""
        longest = max(work, key=lambda item: item.tokens)
        own = facts["max_context_tokens"]
        if longest.tokens <= own:
            return None
        if not self.config.rope_scaling:
            raise ConfigError(
                f"task {longest.task.label!r} needs {longest.tokens:,} tokens, and the model was trained for {own:,}; take "
                "fewer, or stretch its positions with rope_scaling = true, which the report marks"
            )
        return -(-longest.tokens * SCALE_STEP // own) / SCALE_STEP

    def _identity(self, facts, methods, work, scale):
        prompts = {}
        for item in work:
            state = prompts.setdefault(item.task.label, hashlib.sha256())
            state.update(item.digest().encode())
        return {
            "config": {**self.config.identity(), "model": Path(self.model_path).name, "methods": methods},
            "model": fingerprint(self.model_path),
            "plugin": fingerprint(self.plugin),
            "host": facts["host"],
            "rope_scale": scale,
            "prompts": {label: state.hexdigest()[:16] for label, state in prompts.items()},
        }

    def _say_what(self, facts, methods, work, done, scale):
        config = self.config
        self.say(f"model: {Path(self.model_path).name} ({facts['architecture']}, {facts['layers']} layers), {facts['host']}")
        self.say(
            f"plug-in: locks {facts['plugin']}; protocol {config.protocol}, seed {config.seed}, {config.threads} threads"
        )
        if scale:
            self.say(f"positions are stretched by {scale} (YaRN): longer than the model was trained for")
            if any(settings.get("selector") == "shadowkv" for settings in methods.values()):
                self.say("note: shadowkv does not undo stretched positions, and is worse for it")
        self.say(f"{len(work)} prompts x {len(methods)} methods; {len(done)} results are there already")


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
    return result


def _rounded(layers):
    return [[round(share, 4) for share in layer] for layer in layers]


def complete(settings, facts):
    """Settings with what a method must know of the model, from the model file."""
    selector = settings.get("selector", "locks")
    if selector not in ("shadowkv", "compkv"):
        return settings
    known = {"rope_pairs": facts["rope_pairs"]}
    if selector == "shadowkv":
        # Files that say nothing mean what llama.cpp does.
        known["rope_base"] = float(facts["rope_base"] or 10000)
        known["rope_dims"] = int(facts["rope_dims"] or facts["head_dim"])
    if facts["rope_pairs"] is None and "rope_pairs" not in settings:
        raise ConfigError(f"{selector} does not know this model's rotary embedding; set rope_pairs, or leave the method out")
    return {**known, **settings}


def fingerprint(path):
    """The name, size and first bytes of a file."""
    path = Path(path)
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.sha256(file.read(HASHED_BYTES)).hexdigest()[:16]}


def batches(rest, facts, config):
    """The work in its order, in runs whose caches fit the disk space that is allowed for them."""
    token_bytes = 4 * facts["layers"] * facts["kv_heads"] * facts["head_dim"]
    batch, used = [], 0
    for item, missing in rest:
        size = token_bytes * len(item.context) + 4 * facts.get("vocabulary", 1 << 17) * item.kl_rows(config.protocol)
        if batch and used + size > config.cache_mb << 20:
            yield batch
            batch, used = [], 0
        batch.append((item, missing))
        used += size
    if batch:
        yield batch
