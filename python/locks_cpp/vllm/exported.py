"""What metrics.py counts, as Prometheus counters beside vLLM's own.

They are counted in the processes of the GPUs. vLLM's /metrics shows what another process counts only through files, in the
folder that PROMETHEUS_MULTIPROC_DIR names: with several API servers vLLM makes one, otherwise it is to be set by the user.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

# Of each count: the counter, and its label `kind`, if the counter has several.
COUNTERS = {
    "rows_sparse": ("locks:decode_rows", "sparse"),
    "rows_dense_short": ("locks:decode_rows", "exact_short"),
    "rows_dense_budget": ("locks:decode_rows", "exact_budget"),
    "rows_prompt": ("locks:prompt_rows", None),
    "rows_reported": ("locks:reported_rows", None),
    "coverage_sum": ("locks:reported_coverage", None),
    "attended_tokens": ("locks:reported_attended_tokens", None),
    "context_tokens": ("locks:reported_context_tokens", None),
    "read_bytes": ("locks:reported_read_bytes", None),
    "dense_bytes": ("locks:reported_dense_bytes", None),
    "pages_summarized": ("locks:pages_summarized", None),
    "always_attended_records": ("locks:records_not_finite", None),
}
DOCUMENTATION = {
    "locks:decode_rows": "Decode rows of one layer each, by how they were attended.",
    "locks:prompt_rows": "Rows of prompts, of one layer each; all are exact.",
    "locks:reported_rows": "Sparse decode rows of which the following counters tell: all on the CPU, samples on CUDA.",
    "locks:reported_coverage": "Their estimated coverage; divided by the rows it is the mean.",
    "locks:reported_attended_tokens": "Tokens that they attended.",
    "locks:reported_context_tokens": "Tokens of their contexts.",
    "locks:reported_read_bytes": "Bytes that known decode rows read to choose, to attend and to complete.",
    "locks:reported_dense_bytes": "Bytes that dense attention would have read for them.",
    "locks:pages_summarized": "Pages of which a summary was made, of one layer each.",
    "locks:records_not_finite": "Records of pages with a key or value that is not finite, which are always attended.",
}


@functools.cache
def _counters() -> dict[str, Any]:
    """By count; made once in a process, for all of its engines."""
    import prometheus_client

    made = {
        name: prometheus_client.Counter(
            name, text, ["kind"] if any(of == name and kind for of, kind in COUNTERS.values()) else []
        )
        for name, text in DOCUMENTATION.items()
    }
    return {count: made[name].labels(kind) if kind else made[name] for count, (name, kind) in COUNTERS.items()}


class Exported:
    """The counts of one engine."""

    def __init__(self) -> None:
        self._told = dict.fromkeys(COUNTERS, 0.0)

    def tell(self, counts: Mapping[str, float]) -> None:
        """`counts`: as they stand now."""
        for name, counter in _counters().items():
            counter.inc(counts[name] - self._told[name])
            self._told[name] = counts[name]
