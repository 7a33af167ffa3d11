"""The summaries of one attention layer, as a KV-cache layer of vLLM's own.

So their memory is in vLLM's accounting, they have the same block numbers as the keys and values, and whatever vLLM does to
blocks (sharing a prefix, copying on a write, moving) it does to both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionMetadataBuilder

from locks_cpp.vllm import compat
from locks_cpp.vllm.pages import PAGE_TOKENS

if TYPE_CHECKING:
    from locks_cpp.vllm.engine import Engine


class StoreMetadataBuilder(AttentionMetadataBuilder):
    """A store has no step of its own: its layer writes and reads it, and decides what a CUDA graph may hold."""

    _cudagraph_support = AttentionCGSupport.ALWAYS

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False, **kwargs: Any) -> None:
        return None


class StoreBackend(AttentionBackend):
    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM takes no name that is not in its registry

    @staticmethod
    def get_impl_cls() -> Any:
        raise NotImplementedError("a summary store attends to nothing")

    @staticmethod
    def get_builder_cls() -> type[StoreMetadataBuilder]:
        return StoreMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [PAGE_TOKENS]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        return compat.page_layouts()

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *args: Any, **kwargs: Any
    ) -> tuple[int, ...]:
        return compat.store_shape(num_blocks, head_size)


class SummaryStore(nn.Module, AttentionLayerBase):
    def __init__(self, engine: Engine, head_dim: int, kv_heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        config = engine.settings.config
        self.engine = engine
        self.shape = {"format": config.format, "head_dim": head_dim, "kv_heads": kv_heads, "values": config.keeps_values}
        self.summary_bytes = engine.library.page_bytes(**self.shape)
        self.page_bytes = compat.store_page_bytes(self.summary_bytes)
        self.dtype = dtype
        self.kv_cache = torch.tensor([])
        self._view_of: torch.Tensor | None = None
        self._memory: torch.Tensor | None = None
        self._view: Any = None

    def register_in(self, layers: dict[str, Any]) -> int:
        """Adds the store to the layers for which vLLM allocates; gives its number. The name must hold one whole number."""
        number = sum(isinstance(layer, SummaryStore) for layer in layers.values())
        layers[f"locks_summaries.{number}"] = self
        return number

    def get_attn_backend(self) -> type[AttentionBackend]:
        return StoreBackend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        return compat.store_spec(vllm_config.cache_config.block_size, self.page_bytes, self.dtype)

    def bound(self) -> tuple[Any, torch.Tensor]:
        """The summaries, and their memory [pages, page_bytes]. vLLM may bind new memory at any time between steps."""
        if self._view_of is not self.kv_cache:
            self._memory = compat.store_view(self.kv_cache)
            self._view = self.over(self._memory)
            self._view_of = self.kv_cache
        assert self._memory is not None
        return self._view, self._memory

    def over(self, memory: torch.Tensor) -> Any:
        return self.engine.library.Summaries(memory, **self.shape)
