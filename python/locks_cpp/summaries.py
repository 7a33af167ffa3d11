from __future__ import annotations

from dataclasses import dataclass

from locks_cpp import _native
from locks_cpp.arrays import Array


@dataclass(frozen=True)
class SummarizeReport:
    records: int  # written: one per page and KV head
    not_finite_records: int  # of these, pages that are always attended because a key or value is not finite


def summarize(
    keys: Array,
    values: Array | None,
    pages: Array,
    summaries: _native.Summaries,
    *,
    pool: _native.ThreadPool | None = None,
) -> SummarizeReport:
    """Writes the summaries of filled pages.

    keys, values: [blocks, block_tokens, kv_heads, head_dim] of float32, float16 or bfloat16, block_tokens a multiple of 16.
    values may be None if the summaries keep no value parts. pages: int32 [n], page numbers in the cache:
    block * (block_tokens // 16) + page in the block.
    """
    records, not_finite = _native.summarize(keys, values, pages, summaries, pool)
    return SummarizeReport(records, not_finite)
