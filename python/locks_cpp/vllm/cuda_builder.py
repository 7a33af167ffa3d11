"""What a step asks of every attention layer on CUDA.

Built on the host before each step, also where a CUDA graph is replayed that holds the attention of another step of the same
size: that graph reads the tensors that were here when it was captured, which are vLLM's own and `_row_contexts`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

from locks_cpp.vllm import compat
from locks_cpp.vllm.cuda_check import check_summaries
from locks_cpp.vllm.pages import PAGE_TOKENS, Division, divide_rows


@dataclass
class DecodeRows:
    """Rows that decode; each is a request of its own to the library."""

    rows: slice | torch.Tensor
    tables: torch.Tensor  # int32 [rows, pages]
    contexts: torch.Tensor  # int32 [rows]: tokens that a row sees
    first_report: int = 0

    def rows_of(self, call: slice) -> slice | torch.Tensor:
        """The rows of a part of them."""
        if isinstance(self.rows, torch.Tensor):
            return self.rows[call]
        step = self.rows.step or 1
        start = self.rows.start + call.start * step
        return slice(start, start + (call.stop - call.start - 1) * step + 1, step)


@dataclass
class PromptRows:
    first_row: int
    metadata: Any  # FlashAttention's


@dataclass
class CudaStepMetadata:
    decodes: list[DecodeRows]
    prompts: PromptRows | None


class CudaStepMetadataBuilder(FlashAttentionMetadataBuilder):
    supports_update_block_table = False

    @classmethod
    def get_cudagraph_support(cls, *args: Any, **kwargs: Any) -> AttentionCGSupport:
        return AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        self._layers = [layers[name] for name in layer_names]
        self._engine = self._layers[0].impl.store.engine
        self._blocks = -(-self._engine.max_context_tokens // PAGE_TOKENS)
        self._rows_per_decode = compat.rows_per_decode(vllm_config)
        self._max_decode_rows = compat.max_rows_per_decode(vllm_config)
        self._row_contexts = torch.zeros(self._engine.max_rows, dtype=torch.int32, device=device)
        self._last_rows = 0

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> CudaStepMetadata:
        common = common_attn_metadata
        rows_each = self._divide(common).rows_each
        if not 0 < rows_each <= self._rows_per_decode:
            raise RuntimeError(
                f"LOCKS: a graph of requests with 1 to {self._rows_per_decode} rows each was expected, and vLLM captures one "
                f"of {common.num_reqs} requests and {common.num_actual_tokens} rows"
            )
        # Whatever their lengths are said to be: FlashAttention's metadata of a step cannot be replayed.
        tables = common.block_table_tensor[: common.num_reqs, : self._blocks]
        return CudaStepMetadata(self._alike(tables, common.seq_lens, common.num_reqs, rows_each), None)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False, **kwargs: Any
    ) -> CudaStepMetadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise NotImplementedError("LOCKS attends causally only")
        division = self._divide(common)
        self._observe(common, division)
        return self._metadata(common, division)

    def use_cascade_attention(self, *args: Any, **kwargs: Any) -> bool:
        return False

    def _divide(self, common: Any) -> Division:
        def on_host(tensor: torch.Tensor | None) -> np.ndarray | None:
            return None if tensor is None else tensor.numpy()

        starts = common.query_start_loc_cpu.numpy()[: common.num_reqs + 1]
        prefilling = on_host(getattr(common, "is_prefilling", None))
        contexts = on_host(getattr(common, "seq_lens_cpu_upper_bound", None))
        if contexts is None:
            contexts = common.seq_lens.cpu().numpy()  # waits for the device
        return divide_rows(starts, contexts, prefilling, self._max_decode_rows)

    def _metadata(self, common: Any, division: Division) -> CudaStepMetadata:
        tables = common.block_table_tensor[: common.num_reqs, : self._blocks]
        if 0 < division.rows_each <= self._rows_per_decode:
            # Whatever the requests are: vLLM replays a decode graph for every step of this shape.
            alike = self._alike(tables, common.seq_lens, common.num_reqs, division.rows_each)
            if self._decodes_alike(division):
                return CudaStepMetadata(alike, None)
        decodes = [self._unlike(tables, common.seq_lens, division)] if division.decode_rows.size else []
        return CudaStepMetadata(decodes, self._prompts(common, division))

    def _decodes_alike(self, division: Division) -> bool:
        return division.first_prompt is None and 0 < division.rows_each <= self._rows_per_decode

    def _alike(self, tables: torch.Tensor, contexts: torch.Tensor, requests: int, rows_each: int) -> list[DecodeRows]:
        """Requests of so many rows each, padding of no tokens among them."""
        if rows_each == 1:
            return [DecodeRows(slice(0, requests), tables, contexts[:requests])]
        after = torch.arange(rows_each - 1, -1, -1, dtype=torch.int32, device=contexts.device)
        by_row = self._row_contexts[: rows_each * requests].view(rows_each, requests)
        by_row.copy_((contexts[None, :requests] - after[:, None]).clamp_(min=0))
        if requests == 1:
            return [DecodeRows(slice(0, rows_each), tables.expand(rows_each, -1), by_row[:, 0])]
        total = rows_each * requests
        return [DecodeRows(slice(row, total, rows_each), tables, by_row[row], row * requests) for row in range(rows_each)]

    def _unlike(self, tables: torch.Tensor, contexts: torch.Tensor, division: Division) -> DecodeRows:
        rows, owners = division.decode_rows, division.decode_owners
        used = tables[:, : -(-int(division.decode_contexts.max()) // PAGE_TOKENS)]
        count = rows.size
        if owners[-1] == count - 1 and rows[-1] == count - 1:  # the first requests, a row each
            return DecodeRows(slice(0, count), used[:count], contexts[:count])
        owner = torch.from_numpy(owners).to(tables.device)
        after = torch.from_numpy(division.tokens_after).to(tables.device)
        return DecodeRows(
            torch.from_numpy(rows).to(tables.device), used.index_select(0, owner), contexts.index_select(0, owner) - after
        )

    def _prompts(self, common: Any, division: Division) -> PromptRows | None:
        """FlashAttention's metadata for the requests from the first prompt on."""
        first = division.first_prompt
        if first is None:
            return None
        starts = common.query_start_loc_cpu
        first_row = int(starts[first])
        changes = {
            "query_start_loc": common.query_start_loc[first : common.num_reqs + 1] - first_row,
            "query_start_loc_cpu": starts[first : common.num_reqs + 1] - first_row,
            "num_reqs": common.num_reqs - first,
            "num_actual_tokens": int(starts[common.num_reqs]) - first_row,
            "max_query_len": int(np.diff(starts.numpy()[first : common.num_reqs + 1]).max()),
            "block_table_tensor": common.block_table_tensor[first : common.num_reqs],
            "slot_mapping": common.slot_mapping[first_row:],
        }
        contexts = common.seq_lens[first : common.num_reqs]
        decodes = division.decodes[first:]
        if decodes.any():  # nothing to see for them there
            contexts = contexts.masked_fill(torch.from_numpy(decodes).to(contexts.device), 0)
        changes["seq_lens"] = contexts
        for name in ("is_prefilling", "seq_lens_cpu_upper_bound"):
            value = getattr(common, name, None)
            if value is not None:
                changes[name] = value[first : common.num_reqs]
        for name in (
            "_seq_lens_cpu",
            "_num_computed_tokens_cpu",
            "_num_computed_tokens_cache",
            "_token_to_req_indices_cache",
        ):
            if hasattr(common, name):
                changes[name] = None
        return PromptRows(first_row, super().build(0, dataclasses.replace(common, **changes)))

    def _observe(self, common: Any, division: Division) -> None:
        """Counts, on the host, what the step will do, and reads what the one before reported."""
        engine, metrics = self._engine, self._engine.metrics
        prefilling = getattr(common, "is_prefilling", None)
        # What comes before the first prompt are vLLM's own trials.
        engine.serves = engine.serves or prefilling is None or bool(prefilling.any())
        if not engine.serves:
            return
        report = engine.samples.read()
        if report is not None:
            metrics.add_report(report)
        engine.samples.take(self._last_rows)
        config = engine.settings.config
        contexts = division.decode_contexts
        alike = self._decodes_alike(division)
        # As _decode() counts them: by position in their requests, if there are several.
        rows = contexts.size if not alike else common.num_reqs if common.num_reqs > 1 else division.rows_each
        impl = self._layers[0].impl
        shortest = engine.settings.exact_below(rows, impl.num_heads, impl.num_kv_heads)
        dense = (contexts < shortest) | (contexts <= config.budget_tokens)
        metrics.add_rows(contexts, dense, layers=len(self._layers), min_context_tokens=shortest)
        metrics.add("rows_prompt", len(self._layers) * division.prompt_rows)
        self._last_rows = common.num_reqs * division.rows_each if alike else contexts.size
        metrics.log_if_due()
        if engine.settings.debug_check:
            metrics.add("pages_checked", check_summaries(self._layers, common))
