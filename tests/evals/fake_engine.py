"""An engine without a model: words are tokens, and a method finds the passkey if its budget reaches it. Run as a program, it
does a run that kills itself.

    python fake_engine.py FOLDER KILL_AFTER
"""

import os
import signal
import sys
import types
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "evals"))
sys.path.append(str(ROOT / "python"))  # behind a built locks_cpp, which other tests import

import config  # noqa: E402
import runner  # noqa: E402
import task_list  # noqa: E402
from engine import Outcome  # noqa: E402
from sample import Sample  # noqa: E402

LAYERS, KV_HEADS, HEAD_DIM, OWN_CONTEXT = 2, 1, 64, 4096
POSITIONS = 8
TABLES = {
    "progress": False,
    "task": [
        {"name": "tiny/passkey", "tokens": [200, 400], "count": 6},
        {"name": "kl", "tokens": 300, "count": 2, "positions": POSITIONS},
        {"name": "perplexity", "tokens": 300, "count": 1, "positions": POSITIONS},
        {"name": "replay", "tokens": 300, "count": 1, "positions": POSITIONS, "temperature": 0.5},
    ],
    "method": {
        "dense": {"selector": "dense"},
        "locks 128": {"budget_tokens": 128},
        "quest <64>": {"selector": "quest", "budget_tokens": 64},
    },
}


class Tiny:
    """A source of tasks."""

    TASKS = ("passkey",)

    @staticmethod
    def generate(task, tokens, count, seed, count_tokens):
        for index in range(count):
            words = ["noise"] * (tokens - 4)
            place = index * (len(words) - 1) // max(count - 1, 1)
            words.insert(place, f"passkey {seed}{index}")
            context = " ".join(words)
            details = {"length": tokens, "depth": place / (tokens - 4), "count": count_tokens(context)}
            yield Sample(f"tiny/{task}", index, context, "what is it", (f"{seed}{index}",), 4, details=details)


def use_tiny_tasks(patch):
    """Until `patch`, a pytest.MonkeyPatch, is undone."""
    patch.setattr(task_list, "sources", lambda: {"tiny/passkey": (Tiny, "passkey")})
    score = types.SimpleNamespace(score=lambda sample, answer: float(sample.answers[0] in answer))
    patch.setitem(sys.modules, "scoring", score)
    patch.setattr(FakeEngine, "numbers", {})


class FakeEngine:
    words, numbers = [], {}
    answered = read_contexts = 0
    kill_after = None
    fails = ()  # methods' selectors that fail
    unreadable = ()  # which of the contexts, counted from 1
    ends_after = None  # so many tokens that are generated to be replayed
    divides_by_zero = False
    own_context = OWN_CONTEXT
    calls_taken = 2

    def __init__(self, model_path, plugin, settings, threads, rope_scale=None):
        self.settings, self.rope_scale = settings, rope_scale

    def facts(self):
        return {
            "host": "fake 1",
            "plugin": "0",
            "architecture": "fake",
            "layers": LAYERS,
            "query_heads": 3,
            "kv_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "max_context_tokens": type(self).own_context,
            "rope_pairs": None,
            "rope_base": None,
            "rope_dims": None,
            "beginning": [],
            "calls_taken": type(self).calls_taken,
            "declined": {} if type(self).calls_taken else {"mla": 2},
        }

    def tokenize(self, text, special=False):
        numbers = FakeEngine.numbers
        tokens = [numbers.setdefault(word, len(numbers)) for word in text.split()]
        FakeEngine.words = list(numbers)
        return np.array(tokens, np.int32)

    def count_tokens(self, text):
        return len(text.split())

    def restart(self):
        pass

    def read(self, job):
        FakeEngine.read_contexts += 1
        if FakeEngine.read_contexts in FakeEngine.unreadable:
            raise RuntimeError("no cache of this size")
        job.cache.write_bytes(b"cache")
        return 0.01

    def answer(self, job):
        if FakeEngine.answered == FakeEngine.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        FakeEngine.answered += 1
        selector = self.settings.get("selector", "locks")
        if selector in FakeEngine.fails:
            raise MemoryError("no room")
        assert job.cache.exists()
        budget = 10**6 if selector == "dense" else self.settings["budget_tokens"]
        words = [FakeEngine.words[token] for token in job.context]
        key = words[words.index("passkey") + 1] if "passkey" in words else ""
        text = f"it is {key}" if key and len(words) - words.index("passkey") <= budget else "it is lost"
        tokens = len(job.context)
        attended = min(budget, tokens)
        page = 4 * LAYERS * KV_HEADS * HEAD_DIM
        rows = job.kl_rows
        if job.trajectory and FakeEngine.ends_after:
            rows = min(rows, FakeEngine.ends_after - 1)
        counted = {
            "decode_steps": rows if job.trajectory else len(job.fed) + job.new_tokens,
            "attended_tokens": float(attended),
            "coverage": 0.9,
            "coverage_by_head": [[0.8], [1.0]],
        }
        steps = counted["decode_steps"]
        counted |= {
            "score_bytes": 0 if selector == "dense" else steps * page * tokens // 16,
            "attend_bytes": steps * page * attended,
            "complete_bytes": 0,
            "dense_bytes": steps * page * tokens,
            "held_bytes": 0 if selector == "dense" else steps * page * tokens // 8,
        }
        if FakeEngine.divides_by_zero and selector == "quest":
            counted["attended_tokens"] = float("nan")
        divergence = 0.0 if selector == "dense" else 1 / budget
        kl = [divergence * (1 + row % 3) for row in range(rows)]
        nll = [2.0 + divergence] * steps if job.forced else []
        same = [selector == "dense" or row % 4 != 3 for row in range(rows)]
        text, new_tokens = ("", 0) if job.forced else (text, job.new_tokens)
        return Outcome(text, new_tokens, kl, nll, same, 0.001 * steps, counted)

    def close(self):
        pass

    def kill(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def make_run(folder, tables=TABLES, said=None, **flags):
    """A run in `folder` of a model file and a plug-in of a few bytes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model.gguf", "plugin.so"):
        (folder / name).write_bytes(name.encode())
    parsed = config.parse(tables, {"out": str(folder / "out"), **flags})
    say = said.append if said is not None else (lambda line: None)
    return runner.Run(parsed, str(folder / "model.gguf"), str(folder / "plugin.so"), "a command", FakeEngine, say)


if __name__ == "__main__":
    use_tiny_tasks(pytest.MonkeyPatch())
    FakeEngine.kill_after = int(sys.argv[2])
    make_run(sys.argv[1]).go()
