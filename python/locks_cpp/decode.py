from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from locks_cpp import _native
from locks_cpp.arrays import Array
from locks_cpp.config import Config


@dataclass(frozen=True, eq=False)
class DecodeReport:
    """What a step did, one entry per request. Bytes are those read from the cache and from the summaries."""

    context_tokens: NDArray[np.int32]
    attended_tokens: NDArray[np.float32]  # mean over the lists
    completed_pages: NDArray[np.float32]  # mean over the lists
    coverage: NDArray[np.float32]  # estimated share of the attention mass that was attended, mean over query heads
    score_bytes: NDArray[np.int64]
    attend_bytes: NDArray[np.int64]
    complete_bytes: NDArray[np.int64]
    dense_bytes: NDArray[np.int64]  # what dense attention would have read
    dense: NDArray[np.bool_]  # attended whole

    @classmethod
    def read(cls, records: NDArray[np.uint8]) -> DecodeReport:
        """From the bytes that the library writes: [requests, bytes of a report], in C order."""
        fields = records.view(_RECORD)[:, 0]
        return cls(*(fields[name] for name in _NAMES))


# C++'s struct of the same name, which has the same fields in the same order.
_RECORD = np.dtype(
    [
        ("context_tokens", np.int32),
        ("attended_tokens", np.float32),
        ("completed_pages", np.float32),
        ("coverage", np.float32),
        ("score_bytes", np.int64),
        ("attend_bytes", np.int64),
        ("complete_bytes", np.int64),
        ("dense_bytes", np.int64),
        ("dense", np.bool_),
    ],
    align=True,
)
_NAMES = tuple(field.name for field in fields(DecodeReport))
assert _RECORD.names == _NAMES and _RECORD.itemsize == _native.REPORT_BYTES


class DecodePlan:
    """One decode step of one layer, for as many layers as share a geometry. Its workspace is allocated here, once.

    A plan serves one call at a time; a second thread gets a RuntimeError. Plans may share a pool: their calls take turns.
    """

    def __init__(
        self,
        config: Config,
        *,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        softmax_scale: float,
        max_requests: int,
        max_context_tokens: int,
        pool: _native.ThreadPool | None = None,
    ) -> None:
        if not isinstance(config, Config):
            raise ValueError(f"config: expected a locks_cpp.Config, got an object of {type(config)}")
        self._plan = _native.Plan(
            config, query_heads, kv_heads, head_dim, softmax_scale, max_requests, max_context_tokens, pool
        )

    @property
    def workspace_bytes(self) -> int:
        return self._plan.workspace_bytes

    def run(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        summaries: _native.Summaries,
        block_tables: Array,
        context_tokens: Array,
        out: Array,
    ) -> DecodeReport:
        """Writes the attention output of one step to `out`.

        queries, out: float32 [requests, query_heads, head_dim]. keys, values: [blocks, block_tokens, kv_heads, head_dim].
        block_tables: int32 [requests, blocks of the longest request]. context_tokens: int32 [requests], the token being
        decoded included, whose key is in the cache already. Every filled page before it must have been summarized.
        """
        return DecodeReport.read(self._plan.run(queries, keys, values, summaries, block_tables, context_tokens, out))
