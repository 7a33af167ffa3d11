"""How the tokens of an answer are chosen, and where it ends."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sampling:
    temperature: float = 0.0  # 0: the likeliest token, always
    top_p: float = 1.0  # of the likeliest tokens that have this mass together
    seed: int = 0
    stop: str = ""  # a text at which the answer ends
    least: int = 0  # tokens before which the model's end token is not drawn


def of(task, sample, seed):
    """Each sample has a seed of its own, so that answers to the same problem differ; methods share it."""
    state = hashlib.sha256(f"{seed} {sample.task} {sample.index}".encode())
    own_seed = int.from_bytes(state.digest()[:4], "big") >> 1
    return Sampling(task.temperature, task.top_p, own_seed, sample.details.get("stop", ""), task.min_positions)


def choose(logits, sampling, random):
    """A token; `random` gives numbers from 0 to 1."""
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    scaled = np.asarray(logits, np.float64) / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    mass = np.cumsum(weights[order] / weights.sum())
    kept = int(np.searchsorted(mass, min(sampling.top_p, mass[-1]))) + 1
    # The last of the kept: rounding may leave the number beyond all of them.
    return int(order[min(np.searchsorted(mass[:kept], random() * mass[kept - 1], side="right"), kept - 1)])


def generate(context, model, logits, start, count, sampling):
    """At most `count` tokens from the one behind `logits` on, and the seconds of their steps. Ends behind the model's end
    token, and with the text at which the answer ends."""
    random = np.random.default_rng(sampling.seed).random
    tokens, seconds = [], 0.0
    for i in range(count):
        token = choose(logits, sampling, random)
        while i < sampling.least and model.is_end(token):
            logits = np.array(logits, np.float32)
            logits[token] = -np.inf
            token = choose(logits, sampling, random)
        tokens.append(token)
        if model.is_end(token) or i + 1 == count:
            break
        if sampling.stop:
            text = model.detokenize(np.array(tokens, np.int32))
            if cut(text, sampling.stop) != text:
                break
        started = time.perf_counter()
        logits = context.step(token, start + i)
        seconds += time.perf_counter() - started
    return tokens, seconds


def cut(text, stop):
    """The text up to `stop`. At the very beginning it does not count: LongBench lets no answer be empty."""
    begin = 0
    while stop and text.startswith(stop, begin):
        begin += len(stop)
    end = text.find(stop, begin) if stop else -1
    return text[:end] if end >= 0 else text
