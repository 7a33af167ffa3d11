"""What the library's decode step makes of the queries, keys and values of a step: which tokens it attends, which pages'
summaries stand in for them, and how much it gives to each.

The step says it itself. Its output is a mean of values, so values of 1 for one token and 0 for all others give that token's
share; as many at once as a head has dimensions."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import numpy as np

import capture
from attention_trace import BYTES, PAGE_TOKENS, Layer, Step, Trace
from checks import ConfigError
from plugin_path import ROOT

MASSES = ("true_mass", "covered_mass", "attended_mass", "completed_mass")
ROUNDING = 1e-6  # of the values that pages are summarized to: smaller shares are none


def library():
    """The built package; ConfigError where there is none."""
    built = Path(os.environ.get("LOCKS_BUILD_DIR") or ROOT / "build" / "release") / "python"
    if str(built) not in sys.path:
        sys.path.insert(0, str(built))
    try:
        import locks_cpp

        locks_cpp.formats()
    except ImportError as error:
        raise ConfigError(
            f"the Python package is neither built in {built} nor installed ({error}); see docs/PYTHON.md"
        ) from error
    return locks_cpp


def explain(step, config, model):
    """The Trace of a captured step."""
    layers = [_Layer(step, config, layer).traced(layer) for layer in range(len(step.queries))]
    traced = Step(0, 0, 0, 0, len(step.tokens), layers)
    return Trace(model, dataclasses.asdict(config), list(MASSES), [traced], step.tokens)


class _Layer:
    def __init__(self, step, config, layer):
        locks = library()
        queries, keys = np.ascontiguousarray(step.queries[layer]), step.keys[layer]
        tokens, kv_heads, head_dim = keys.shape
        self._pages = -(-tokens // PAGE_TOKENS)
        page_bytes = locks.page_bytes(config.format, head_dim, kv_heads, config.keeps_values)
        self._records = np.zeros((self._pages, page_bytes), np.uint8)
        self._summaries = locks.Summaries(
            self._records, format=config.format, head_dim=head_dim, kv_heads=kv_heads, values=config.keeps_values
        )
        self._filled = np.arange(tokens // PAGE_TOKENS, dtype=np.int32)
        self._table = np.arange(self._pages, dtype=np.int32)[None]
        self._tokens = np.array([tokens], np.int32)
        self._queries, self._keys = queries, self._paged(keys)
        self._plan = locks.DecodePlan(
            config,
            query_heads=len(queries),
            kv_heads=kv_heads,
            head_dim=head_dim,
            softmax_scale=step.scale,
            max_requests=1,
            max_context_tokens=tokens,
        )
        values = self._paged(step.values[layer])
        self._summarize(locks, values)
        _, self.report = self._run(values)
        self._find_masses(locks)
        padding = self._pages * PAGE_TOKENS - tokens
        shares = self._by_page(np.pad(capture.attention(queries, keys, step.scale), ((0, 0), (0, padding))))
        self.true_mass = shares.sum(-1)
        seen = (self.attended[..., None] >> np.arange(PAGE_TOKENS) & 1).astype(bool)
        self.covered_mass = np.where(seen, shares, 0).sum(-1)

    def traced(self, number):
        """With a list for each query head."""
        read = {name: int(getattr(self.report, f"{name}_bytes")[0]) for name in BYTES}
        completed = np.where(self.completed_mass > 0, ~self.attended, 0).astype(np.uint16)
        masses = {name: getattr(self, name) for name in MASSES}
        return Layer(number, bool(self.report.dense[0]), read, masses, self.attended, completed)

    def _find_masses(self, locks):
        none = np.zeros_like(self._keys)
        self._summarize(locks, none)
        tokens = np.arange(self._pages * PAGE_TOKENS)
        shares = self._by_page(self._shares(tokens, lambda values: self._run(values)[0]))
        self.attended_mass = shares.sum(-1)
        # A share too small for fp32 counts as not attended.
        self.attended = ((shares > 0) << np.arange(PAGE_TOKENS)).sum(-1).astype(np.uint16)

        def completed(values):
            self._summarize(locks, values)
            return self._run(none)[0]

        shares = self._shares(tokens // PAGE_TOKENS, completed)
        self.completed_mass = np.where(shares > ROUNDING, shares, 0)

    def _shares(self, groups, run):
        """What `run` gives to each group of tokens, as float32 [query heads, groups]; `groups` has each token's."""
        _, _, kv_heads, head_dim = self._keys.shape
        parts = []
        for begin in range(0, groups[-1] + 1, head_dim):
            columns = groups[:, None] == np.arange(begin, min(begin + head_dim, groups[-1] + 1))
            values = np.zeros((len(groups), kv_heads, head_dim), np.float16)
            values[:, :, : columns.shape[1]] = columns[:, None]
            parts.append(run(self._paged(values))[:, : columns.shape[1]])
        return np.concatenate(parts, axis=1)

    def _paged(self, rows):
        """[tokens, KV heads, head dim] as [pages, tokens of a page, KV heads, head dim]."""
        padded = np.zeros((self._pages * PAGE_TOKENS, *rows.shape[1:]), np.float16)
        padded[: len(rows)] = rows
        return padded.reshape(self._pages, PAGE_TOKENS, *rows.shape[1:])

    def _by_page(self, shares):
        return shares.reshape(len(shares), self._pages, PAGE_TOKENS)

    def _summarize(self, locks, values):
        locks.summarize(self._keys, values, self._filled, self._summaries)

    def _run(self, values):
        out = np.empty_like(self._queries)[None]
        report = self._plan.run(self._queries[None], self._keys, values, self._summaries, self._table, self._tokens, out)
        return out[0], report
