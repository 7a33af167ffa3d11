"""Attention of one layer on CUDA: FlashAttention for prompts and for writing the cache, LOCKS for summaries and decoding.

What is queued here for decode rows reads lengths, tables and slots on the device, so vLLM can hold it in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl

from locks_cpp import cuda
from locks_cpp.vllm import compat
from locks_cpp.vllm.cuda_builder import CudaStepMetadata, DecodeRows
from locks_cpp.vllm.cuda_engine import engine_for
from locks_cpp.vllm.pages import PAGE_TOKENS
from locks_cpp.vllm.refusal import CUDA_CACHE_DTYPES, FP8_CACHE_DTYPES, HEAD_DIMS, refuse_layer
from locks_cpp.vllm.store import SummaryStore

BRANCH_ROWS = 8


class CudaImpl(FlashAttentionImpl):
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
        assert vllm_config is not None  # vLLM makes layers for a configuration
        engine = engine_for(vllm_config)
        refuse_layer(
            head_dim=head_size,
            head_dims=HEAD_DIMS,
            kv_cache_dtype=kv_cache_dtype,
            cache_dtypes=CUDA_CACHE_DTYPES,
            attn_type=attn_type,
            alibi_slopes=alibi_slopes,
            sliding_window=sliding_window,
            logits_soft_cap=logits_soft_cap,
            kv_sharing_target=kv_sharing_target_layer_name,
            extra=extra,
        )
        kv_heads = num_kv_heads or num_heads
        super().__init__(
            num_heads, head_size, scale, kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap, attn_type
        )
        self._settings = engine.settings
        self._place = engine.workplace(
            query_heads=num_heads, kv_heads=kv_heads, head_dim=head_size, softmax_scale=float(scale)
        )
        dtype = compat.cache_dtype(kv_cache_dtype, vllm_config.model_config)
        self._is_fp8 = kv_cache_dtype in FP8_CACHE_DTYPES
        self.store = SummaryStore(engine, head_size, kv_heads, dtype)
        number = self.store.register_in(vllm_config.compilation_config.static_forward_context)
        self._reports = engine.samples.buffer(number)
        self._beside = engine.beside  # where a decode graph makes summaries while it attends
        self._waits = False  # for them
        engine.announce(self.store, 2 * PAGE_TOKENS * kv_heads * head_size * dtype.itemsize)
        self._views_of: torch.Tensor | None = None
        self._views: tuple[torch.Tensor, torch.Tensor]

    def key_value_views(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._views_of is not kv_cache:
            self._views = compat.key_value_views(kv_cache, self.num_kv_heads, self.head_size)
            self._views_of = kv_cache
        return self._views

    def scales(self, layer: Any) -> dict[str, torch.Tensor]:
        """What keys and values of an fp8 cache are multiplied by; vLLM may write other numbers there."""
        return {"key_scale": layer._k_scale.view(1), "value_scale": layer._v_scale.view(1)} if self._is_fp8 else {}

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        keys, values = self.key_value_views(kv_cache)
        summaries, _ = self.store.bound()
        kept_values = values if self.store.shape["values"] else None
        stream = torch.cuda.current_stream()
        # A branch of the graph costs some microseconds too: the more rows, the more often a page fills.
        if self._beside is not None and slot_mapping.shape[0] >= BRANCH_ROWS and torch.cuda.is_current_stream_capturing():
            self._beside.wait_stream(stream)
            self._waits = True
            stream = self._beside
        # After the write on its stream: a page's keys are all in the cache by then.
        scales = self.scales(layer)
        cuda.summarize_filled(keys, kept_values, slot_mapping, summaries, **scales, stream=stream.cuda_stream)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CudaStepMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if attn_metadata is None:  # a profiling run
            return output.fill_(0)
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("LOCKS writes no quantised output")
        prompts = attn_metadata.prompts
        if prompts is not None:
            # Decode rows that lie among prompts get zeros here, and theirs below.
            rows = slice(prompts.first_row, None)
            super().forward(layer, query[rows], key[rows], value[rows], kv_cache, prompts.metadata, output[rows])
        queries = query.view(-1, self.num_heads, self.head_size)
        out = output.view(-1, self.num_heads, self.head_size)
        for decode in attn_metadata.decodes:
            self._decode(layer, queries, kv_cache, decode, out)
        if self._waits:
            torch.cuda.current_stream().wait_stream(self._beside)
            self._waits = False
        return output

    def _decode(
        self, layer: Any, queries: torch.Tensor, kv_cache: torch.Tensor, decode: DecodeRows, out: torch.Tensor
    ) -> None:
        place = self._place
        scales = self.scales(layer)
        # For FlashAttention vLLM makes the queries fp8 where the cache is.
        query_scale = layer._q_scale.view(1) if queries.dtype == torch.float8_e4m3fn else None
        if query_scale is not None:
            queries = queries.view(torch.uint8)
        keys, values = self.key_value_views(kv_cache)
        summaries, _ = self.store.bound()
        total = decode.contexts.shape[0]
        plan = place.plan(self._settings.exact_below(total, self.num_heads, self.num_kv_heads))
        for first in range(0, total, place.rows):
            count = min(place.rows, total - first)
            call = slice(first, first + count)
            rows = decode.rows_of(call)
            some_queries = place.queries[:count]
            in_place = isinstance(rows, slice)  # side by side in the engine's tensor
            some_out = out[rows] if in_place else place.out[:count]
            stream = torch.cuda.current_stream().cuda_stream
            cuda.copy_rows(queries[rows], some_queries, scale=query_scale, stream=stream)
            at = decode.first_report + first
            reports = None if self._reports is None else self._reports[at : at + count]
            plan.run(
                some_queries,
                keys,
                values,
                summaries,
                decode.tables[call],
                decode.contexts[call],
                some_out,
                **scales,
                workspace=place.workspace,
                reports=reports if reports is not None and reports.shape[0] == count else None,
                stream=stream,
            )
            if not in_place:
                out[rows] = some_out.to(out.dtype)
