"""What a step of the engine asks of every attention layer, read once a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.v1.attention.backend import AttentionMetadataBuilder

from locks_cpp.vllm import compat
from locks_cpp.vllm.pages import StepRows, split_rows


@dataclass
class StepMetadata:
    rows: StepRows
    causal: bool


class StepMetadataBuilder(AttentionMetadataBuilder):
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._max_decode_rows = compat.max_rows_per_decode(vllm_config)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False, **kwargs: Any
    ) -> StepMetadata:
        common = common_attn_metadata
        is_prefilling = getattr(common, "is_prefilling", None)
        rows = split_rows(
            common.query_start_loc.numpy(),
            common.seq_lens.numpy(),
            common.block_table_tensor.numpy(),
            None if is_prefilling is None else is_prefilling.numpy(),
            self._max_decode_rows,
        )
        return StepMetadata(rows, causal=common.causal is True)
