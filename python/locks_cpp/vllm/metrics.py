"""What an engine did: counted per attention layer, query row and step. Logged through vLLM's own logger."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

COUNTS = (
    "rows_sparse",
    "rows_dense_short",  # context under min_context_tokens
    "rows_dense_budget",  # context within the budget
    "rows_prompt",  # attended exactly, being of a prompt
    "pages_summarized",
    "always_attended_records",  # of pages with a key or value that is not finite
    "pages_checked",  # by debug_check
    "attended_tokens",  # in sparse rows
    "context_tokens",  # in sparse rows
    "read_bytes",
    "dense_bytes",
)


class Metrics:
    def __init__(self, logger: logging.Logger, min_context_tokens: int, log_interval_seconds: float) -> None:
        self._logger = logger
        self._min_context_tokens = min_context_tokens
        self._interval = log_interval_seconds
        self._next_log: float | None = None  # counted from the first decode on
        self._logged_rows = 0
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0)
        self._coverage_sum = 0.0
        self.min_coverage = 1.0

    def add(self, name: str, count: float) -> None:
        self.counts[name] += count

    def add_decode(self, report: Any) -> None:
        """`report`: locks_cpp's DecodeReport of one call, arrays by row."""
        dense = np.asarray(report.dense, dtype=bool)
        context = np.asarray(report.context_tokens)
        short = int(np.count_nonzero(dense & (context < self._min_context_tokens)))
        counts = self.counts
        counts["rows_dense_short"] += short
        counts["rows_dense_budget"] += int(np.count_nonzero(dense)) - short
        counts["read_bytes"] += int(np.sum(report.score_bytes) + np.sum(report.attend_bytes) + np.sum(report.complete_bytes))
        counts["dense_bytes"] += int(np.sum(report.dense_bytes))
        if dense.all():
            return
        sparse = ~dense
        coverage = np.asarray(report.coverage)[sparse]
        counts["rows_sparse"] += int(np.count_nonzero(sparse))
        counts["attended_tokens"] += float(np.sum(np.asarray(report.attended_tokens)[sparse]))
        counts["context_tokens"] += int(np.sum(context[sparse]))
        self._coverage_sum += float(np.sum(coverage))
        self.min_coverage = min(self.min_coverage, float(coverage.min()))

    def as_dict(self) -> dict[str, Any]:
        counts = self.counts
        rows = counts["rows_sparse"]
        return {
            **counts,
            "attended_share": counts["attended_tokens"] / counts["context_tokens"] if rows else 1.0,
            "coverage": self._coverage_sum / rows if rows else 1.0,
            "min_coverage": self.min_coverage,
        }

    def describe(self) -> str:
        now = self.as_dict()
        decode_rows = now["rows_sparse"] + now["rows_dense_short"] + now["rows_dense_budget"]
        text = (
            f"LOCKS: {decode_rows:,.0f} decode rows (of one layer each): {now['rows_sparse']:,.0f} sparse, "
            f"{now['rows_dense_short']:,.0f} exact for a context under {self._min_context_tokens} tokens, "
            f"{now['rows_dense_budget']:,.0f} exact within the budget; {now['rows_prompt']:,.0f} prompt rows exact"
        )
        if now["rows_sparse"]:
            text += (
                f"; sparse rows attended {now['attended_share']:.1%} of their tokens, estimated coverage "
                f"{now['coverage']:.1%} (least {now['min_coverage']:.1%}); decode read "
                f"{now['read_bytes'] / now['dense_bytes']:.1%} of dense attention's bytes"
            )
        if now["always_attended_records"]:
            text += f"; {now['always_attended_records']:,.0f} records hold a key or value that is not finite"
        return text

    def log_if_due(self) -> None:
        if not self._interval:
            return
        now = time.monotonic()
        if self._next_log is not None and now >= self._next_log:
            self.log()
            self._next_log = None
        if self._next_log is None:
            self._next_log = now + self._interval

    def log(self) -> None:
        """Says how it stands, if anything was decoded since it was said last."""
        rows = sum(int(self.counts[name]) for name in ("rows_sparse", "rows_dense_short", "rows_dense_budget"))
        if rows > self._logged_rows:
            self._logged_rows = rows
            self._logger.info("%s", self.describe())
