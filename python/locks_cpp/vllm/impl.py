"""Attention of one layer on the CPU: writes the cache, summarises what fills, and attends."""

from __future__ import annotations

from typing import Any

import locks_cpp
import numpy as np
import torch
from vllm.v1.attention.backend import AttentionImpl

from locks_cpp.vllm import compat
from locks_cpp.vllm.builder import StepMetadata
from locks_cpp.vllm.check import check_summaries
from locks_cpp.vllm.cpu_engine import engine_for
from locks_cpp.vllm.pages import PAGE_TOKENS, StepRows, completed_pages, written_slots
from locks_cpp.vllm.refusal import CPU_CACHE_DTYPES, HEAD_DIMS, refuse_layer
from locks_cpp.vllm.store import SummaryStore


class CpuImpl(AttentionImpl):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: Any = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        **extra: Any,
    ) -> None:
        vllm_config = compat.current_config()
        assert vllm_config is not None  # or CpuBackend would not have chosen this class
        engine = engine_for(vllm_config)
        refuse_layer(
            head_dim=head_size,
            head_dims=HEAD_DIMS,
            kv_cache_dtype=kv_cache_dtype,
            cache_dtypes=CPU_CACHE_DTYPES,
            attn_type=attn_type,
            alibi_slopes=alibi_slopes,
            sliding_window=sliding_window,
            logits_soft_cap=logits_soft_cap,
            kv_sharing_target=kv_sharing_target_layer_name,
            extra=extra,
        )
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self._engine = engine
        self._metrics = engine.metrics
        self._plan, self._rows_per_call = engine.plan(
            query_heads=num_heads, kv_heads=self.num_kv_heads, head_dim=head_size, softmax_scale=self.scale
        )
        dtype = compat.cache_dtype(kv_cache_dtype, vllm_config.model_config)
        self._store = SummaryStore(engine, head_size, self.num_kv_heads, dtype)
        self._store.register_in(vllm_config.compilation_config.static_forward_context)
        engine.announce(self._store, 2 * PAGE_TOKENS * self.num_kv_heads * head_size * dtype.itemsize)
        self._views_of: torch.Tensor | None = None
        self._views: tuple[torch.Tensor, torch.Tensor]

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        slots, rows = written_slots(slot_mapping.numpy())
        if slots.size == 0:  # a profiling run
            return
        keys, values = self._key_value_views(kv_cache)
        pages, offsets = (torch.from_numpy(part) for part in np.divmod(slots, PAGE_TOKENS))
        for cached, new in ((keys, key), (values, value)):
            new = new[: slot_mapping.shape[0]] if rows is None else new[torch.from_numpy(rows)]
            cached[pages, offsets] = new.to(cached.dtype)
        completed = completed_pages(slots)
        if completed.size:
            self._summarize(keys, values, completed, self._store.bound()[0])

    def _summarize(self, keys: torch.Tensor, values: torch.Tensor, pages: np.ndarray, summaries: Any) -> None:
        kept_values = values if self._engine.settings.config.keeps_values else None
        report = locks_cpp.summarize(keys, kept_values, pages, summaries, pool=self._engine.pool)
        self._metrics.add("pages_summarized", pages.size)
        self._metrics.add("always_attended_records", report.not_finite_records)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: StepMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if attn_metadata is None:  # a profiling run
            return output.fill_(0)
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("LOCKS writes no quantised output")
        if not attn_metadata.causal:
            raise NotImplementedError("LOCKS attends causally only")
        rows = attn_metadata.rows
        keys, values = self._key_value_views(kv_cache)
        if self._engine.settings.debug_check:
            self._metrics.add("pages_checked", check_summaries(layer, self._store, keys, values, rows))
        queries = query.view(-1, self.num_heads, self.head_size)
        out = output.view(-1, self.num_heads, self.head_size)
        if rows.decode_rows.size:
            self._decode(queries, keys, values, rows, out)
        for prefill in rows.prefills:
            part = slice(prefill.first, prefill.last)
            with _Float32(queries, out, part) as (some_queries, some_out):
                locks_cpp.prefill(
                    some_queries,
                    keys,
                    values,
                    prefill.pages,
                    prefill.visible_tokens,
                    some_out,
                    softmax_scale=self.scale,
                    pool=self._engine.pool,
                )
            self._metrics.add("rows_prompt", prefill.last - prefill.first)
        return output

    def _decode(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: StepRows, out: torch.Tensor
    ) -> None:
        summaries, _ = self._store.bound()
        for first in range(0, rows.decode_rows.size, self._rows_per_call):
            call = slice(first, first + self._rows_per_call)
            numbers = rows.decode_rows[call]
            contiguous = numbers[-1] - numbers[0] == numbers.size - 1
            where = slice(int(numbers[0]), int(numbers[-1]) + 1) if contiguous else torch.from_numpy(numbers)
            with _Float32(queries, out, where) as (some_queries, some_out):
                report = self._plan.run(
                    some_queries, keys, values, summaries, rows.decode_tables[call], rows.decode_context[call], some_out
                )
            self._metrics.add_decode(report)
        self._metrics.log_if_due()

    def _key_value_views(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._views_of is not kv_cache:
            self._views = compat.key_value_views(kv_cache, self.num_kv_heads, self.head_size)
            self._views_of = kv_cache
        return self._views


class _Float32:
    """Some rows of queries and of the output as float32, which is what the library reads and writes; what it writes is in
    the output at the end. Nothing is copied if the rows are a slice and float32 already."""

    def __init__(self, queries: torch.Tensor, out: torch.Tensor, rows: slice | torch.Tensor) -> None:
        self._queries, self._out, self._rows = queries, out, rows

    def __enter__(self) -> tuple[torch.Tensor, torch.Tensor]:
        queries = self._queries[self._rows].float()
        out = self._out[self._rows]
        self._in_place = isinstance(self._rows, slice) and out.dtype == torch.float32
        self._result = out if self._in_place else torch.empty(out.shape, dtype=torch.float32)
        return queries, self._result

    def __exit__(self, error: Any, *_: Any) -> None:
        if error is None and not self._in_place:
            self._out[self._rows] = self._result.to(self._out.dtype)
