"""The setting debug_check on CUDA: before a step, the summaries of all pages that its requests had filled before it."""

from __future__ import annotations

from typing import Any

import torch

from locks_cpp import cuda
from locks_cpp.vllm.pages import PAGE_TOKENS


def filled_pages(common: Any) -> torch.Tensor:
    """Of the requests in the step, by vLLM's metadata: int32, each page once. Waits for the device.

    Not those that the step writes: a prompt may share blocks that another one fills in the same step."""
    requests = common.num_reqs
    counts = common.query_start_loc[1 : requests + 1] - common.query_start_loc[:requests]
    filled = (common.seq_lens[:requests] - counts).clamp(min=0) // PAGE_TOKENS
    filled = torch.where(counts > 0, filled, 0)
    tables = common.block_table_tensor[:requests]
    inside = torch.arange(tables.shape[1], device=tables.device)[None] < filled[:, None]
    filled_before = tables[inside].unique()
    written = common.slot_mapping[common.slot_mapping >= 0] // PAGE_TOKENS
    return filled_before[~torch.isin(filled_before, written)]


def check_summaries(layers: list[Any], common: Any) -> int:
    """Compares them with fresh ones; returns how many."""
    if not bool((common.slot_mapping >= 0).any()):
        return 0  # a step that vLLM makes up, to measure memory or to capture: its pages are nobody's
    pages = filled_pages(common)
    if pages.numel() == 0:
        return 0
    stream = torch.cuda.current_stream().cuda_stream
    for layer in layers:
        store = layer.impl.store
        keys, values = layer.impl.key_value_views(layer.kv_cache)
        _, memory = store.bound()
        fresh = torch.zeros_like(memory)
        kept_values = values if store.shape["values"] else None
        scales = layer.impl.scales(layer)
        cuda.summarize(keys, kept_values, pages, store.over(fresh), **scales, stream=stream)
        at, size = pages.long(), store.summary_bytes
        differs = (memory[at, :size] != fresh[at, :size]).any(dim=1)
        if bool(differs.any()):
            wrong = at[differs].tolist()
            raise RuntimeError(
                f"LOCKS debug_check: {layer.layer_name}: {len(wrong)} of {at.numel()} summaries are not those of the cache: "
                f"pages {wrong[:8]}"
            )
    return len(layers) * int(pages.numel())
