"""A KV connector that makes a request's prompt look computed: random keys and values go into its blocks, through each
layer's own do_kv_cache_update, so that a backend that keeps summaries makes them. For measuring decode steps only."""

from __future__ import annotations

import types
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.decode_bench_connector import (
    DecodeBenchConnector,
    DecodeBenchConnectorWorker,
)

CHUNK_TOKENS = 65536


def allow_for_locks() -> None:
    """The plug-in refuses connectors, since blocks that they write have no summaries. This one's have."""
    from locks_cpp.vllm import engine

    refuse = engine.refuse_engine

    def refuse_the_rest(vllm_config: Any) -> None:
        names = ("parallel_config", "model_config")
        refuse(types.SimpleNamespace(**{name: getattr(vllm_config, name) for name in names}))

    engine.refuse_engine = refuse_the_rest


class Filler(DecodeBenchConnectorWorker):
    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._layers = vllm_config.compilation_config.static_forward_context

    def _fill_blocks(self, group_idx: int, block_ids: list[int], num_tokens: int) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        draw = torch.Generator(device=device)
        blocks = torch.tensor(block_ids, dtype=torch.int64, device=device)
        inside = torch.arange(self.block_size, device=device)
        slots = (blocks[:, None] * self.block_size + inside).flatten()[:num_tokens]
        for number, name in enumerate(self.group_to_layers[group_idx]):
            layer = self._layers[name]
            if not hasattr(layer, "impl"):  # a summary store, which its layer writes
                continue
            draw.manual_seed(number)
            for chunk in slots.split(CHUNK_TOKENS):
                shape = (chunk.numel(), layer.num_kv_heads, layer.head_size)
                key, value = (torch.randn(shape, dtype=torch.bfloat16, device=device, generator=draw) for _ in range(2))
                layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, chunk)


class FillingConnector(DecodeBenchConnector):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.WORKER:
            self.connector_worker = Filler(vllm_config)
