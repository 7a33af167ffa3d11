"""The setting debug_check: the summaries that a step may read are those of the keys and values in the cache."""

from __future__ import annotations

from typing import Any

import locks_cpp
import numpy as np
import torch

from locks_cpp.vllm.pages import PAGE_TOKENS, StepRows
from locks_cpp.vllm.store import SummaryStore


def check_summaries(layer: Any, store: SummaryStore, keys: torch.Tensor, values: torch.Tensor, rows: StepRows) -> int:
    """Compares the summary of every filled page of every request in the step with a fresh one; returns how many."""
    filled = [
        table[: context // PAGE_TOKENS] for table, context in zip(rows.decode_tables, rows.decode_context, strict=True)
    ]
    filled += [prefill.pages[: int(prefill.visible_tokens[-1]) // PAGE_TOKENS] for prefill in rows.prefills]
    pages = np.unique(np.concatenate(filled)) if filled else np.zeros(0, np.int32)
    if pages.size == 0:
        return 0
    _, memory = store.bound()
    fresh = torch.zeros(memory.shape, dtype=torch.uint8)
    kept_values = values if store.shape["values"] else None
    locks_cpp.summarize(keys, kept_values, pages.astype(np.int32), store.over(fresh))
    at = torch.from_numpy(pages.astype(np.int64))
    differs = (memory[at, : store.summary_bytes] != fresh[at, : store.summary_bytes]).any(dim=1)
    if bool(differs.any()):
        wrong = at[differs].tolist()
        raise RuntimeError(
            f"LOCKS debug_check: {layer.layer_name}: {len(wrong)} summaries are not those of the cache: pages {wrong[:8]}"
        )
    return int(pages.size)
