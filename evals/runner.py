"""A run: every prompt, every method, some prompts at a time."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path

import config as configuration
import engine as engines
import task_list
from config import ConfigError
from estimate import Estimate
from jobs import Jobs, batches
from results import Folder
from worker import Worker, reads_itself

HASHED_BYTES = 16 << 20
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
            described = {"facts": facts, "command": self.command, "prompts": len(work)}
            folder.describe(identity, {**described, "model_path": Path(self.model_path).name})
            readers = [name for name, settings in methods.items() if reads_itself(settings)]
            total = len(work) * len(methods)
            estimate = Estimate(rest, config.protocol, len(done), total, config.progress, readers, config.jobs)
            self._do(rest, methods, facts, scale, folder, estimate)
        return folder.path

    def _do(self, rest, methods, facts, scale, folder, estimate):
        config, scratch = self.config, folder.path / "caches"
        cache_bytes = config.cache_mb << 20
        jobs = Jobs(config.jobs, cache_bytes)

        def make_engine(settings):
            return self.make_engine(self.model_path, self.plugin, settings, config.threads, scale)

        def make_worker(number):
            return Worker(jobs, make_engine, config, methods, folder, estimate, scratch / str(number))

        def size(item):
            return bytes_of(item, facts, config.protocol)

        shutil.rmtree(scratch, ignore_errors=True)
        try:
            jobs.run(batches(rest, config.jobs, cache_bytes, size, estimate.seconds_of), make_worker)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

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
            + (f" for each of {config.jobs} jobs" if config.jobs > 1 else "")
        )
        if scale:
            self.say(f"positions are stretched by {scale} (YaRN): longer than the model was trained for")
            if any(settings.get("selector") == "shadowkv" for settings in methods.values()):
                self.say("note: shadowkv does not undo stretched positions, and is worse for it")
        self.say(f"{len(work)} prompts x {len(methods)} methods; {len(done)} results are there already")


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


def bytes_of(item, facts, protocol):
    """What a prompt keeps on the disk: its cache, and a distribution for each row that is compared."""
    token_bytes = 4 * facts["layers"] * facts["kv_heads"] * facts["head_dim"]
    return token_bytes * len(item.context) + 4 * facts.get("vocabulary", 1 << 17) * item.kl_rows(protocol)
