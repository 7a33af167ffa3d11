"""What an engine did: counted per attention layer, query row and step. Logged through vLLM's own logger, and exported."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

COUNTS = (
    "rows_sparse",
    "rows_dense_short",  # context under min_context_tokens, on CUDA also within exact_head_tokens
    "rows_dense_budget",  # context within the budget
    "rows_prompt",  # attended exactly, being of a prompt
    "rows_reported",  # sparse rows of which the following is known: all on the CPU, samples on CUDA
    "coverage_sum",
    "attended_tokens",
    "context_tokens",
    "read_bytes",  # of all decode rows that are known
    "dense_bytes",
    "pages_summarized",
    "always_attended_records",  # of pages with a key or value that is not finite
    "pages_checked",  # by debug_check
)


EXPORT_SECONDS = 1.0


class Metrics:
    def __init__(
        self,
        logger: logging.Logger,
        min_context_tokens: int,
        log_interval_seconds: float,
        export: Callable[[Mapping[str, float]], None] | None = None,
    ) -> None:
        self._logger = logger
        self._min_context_tokens = min_context_tokens
        self._interval = log_interval_seconds
        self._next_log: float | None = None  # counted from the first decode on
        self._export = export
        self._next_export = 0.0
        self._logged_rows = 0
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0)
        self.min_coverage = 1.0

    def add(self, name: str, count: float) -> None:
        self.counts[name] += count

    def add_decode(self, report: Any) -> None:
        """`report`: locks_cpp's DecodeReport of one call, arrays by row."""
        self.add_rows(np.asarray(report.context_tokens), np.asarray(report.dense, dtype=bool))
        self.add_report(report)

    def add_rows(
        self, context: np.ndarray, dense: np.ndarray, layers: int = 1, min_context_tokens: int | None = None
    ) -> None:
        """Decode rows of so many layers: their context tokens, and whether they were attended exactly."""
        least = self._min_context_tokens if min_context_tokens is None else min_context_tokens
        short = int(np.count_nonzero(dense & (context < least)))
        exact = int(np.count_nonzero(dense))
        self.counts["rows_dense_short"] += layers * short
        self.counts["rows_dense_budget"] += layers * (exact - short)
        self.counts["rows_sparse"] += layers * (context.size - exact)

    def add_report(self, report: Any) -> None:
        """How rows went that add_rows counts."""
        counts = self.counts
        counts["read_bytes"] += int(np.sum(report.score_bytes) + np.sum(report.attend_bytes) + np.sum(report.complete_bytes))
        counts["dense_bytes"] += int(np.sum(report.dense_bytes))
        sparse = ~np.asarray(report.dense, dtype=bool)
        if not sparse.any():
            return
        coverage = np.asarray(report.coverage)[sparse]
        counts["rows_reported"] += int(np.count_nonzero(sparse))
        counts["attended_tokens"] += float(np.sum(np.asarray(report.attended_tokens)[sparse]))
        counts["context_tokens"] += int(np.sum(np.asarray(report.context_tokens)[sparse]))
        counts["coverage_sum"] += float(np.sum(coverage))
        self.min_coverage = min(self.min_coverage, float(coverage.min()))

    def as_dict(self) -> dict[str, Any]:
        counts = self.counts
        rows = counts["rows_reported"]
        return {
            **counts,
            "attended_share": counts["attended_tokens"] / counts["context_tokens"] if rows else 1.0,
            "coverage": counts["coverage_sum"] / rows if rows else 1.0,
            "min_coverage": self.min_coverage,
        }

    def describe(self) -> str:
        now = self.as_dict()
        decode_rows = now["rows_sparse"] + now["rows_dense_short"] + now["rows_dense_budget"]
        text = (
            f"LOCKS: {decode_rows:,.0f} decode rows (of one layer each): {now['rows_sparse']:,.0f} sparse, "
            f"{now['rows_dense_short']:,.0f} exact for a short context, "
            f"{now['rows_dense_budget']:,.0f} exact within the budget; {now['rows_prompt']:,.0f} prompt rows exact"
        )
        if now["rows_reported"]:
            sampled = "" if now["rows_reported"] == now["rows_sparse"] else f" ({now['rows_reported']:,.0f} sampled)"
            text += (
                f"; sparse rows{sampled} attended {now['attended_share']:.1%} of their tokens, estimated coverage "
                f"{now['coverage']:.1%} (least {now['min_coverage']:.1%}); decode read "
                f"{now['read_bytes'] / now['dense_bytes']:.1%} of dense attention's bytes"
            )
        if now["always_attended_records"]:
            text += f"; {now['always_attended_records']:,.0f} records hold a key or value that is not finite"
        return text

    def log_if_due(self) -> None:
        """At every step: exports, and logs, when it is time to."""
        now = time.monotonic()
        if now >= self._next_export:
            self._next_export = now + EXPORT_SECONDS
            self.export()
        if not self._interval:
            return
        if self._next_log is not None and now >= self._next_log:
            self.log()
            self._next_log = None
        if self._next_log is None:
            self._next_log = now + self._interval

    def export(self) -> None:
        if self._export is not None:
            self._export(self.counts)

    def end(self) -> None:
        self.export()
        self.log()

    def log(self) -> None:
        """Says how it stands, if anything was decoded since it was said last."""
        rows = sum(int(self.counts[name]) for name in ("rows_sparse", "rows_dense_short", "rows_dense_budget"))
        if rows > self._logged_rows:
            self._logged_rows = rows
            self._logger.info("%s", self.describe())
