"""All that depends on which vLLM this is. Its interface is probed, never its version.

| up to 0.25 | a cache view is [2, pages, 16, heads, dim] or [pages, 2, 16, heads, dim] |
| 0.26 to 0.28 | [pages, heads, 16, 2 dim]: key and value of a token side by side |
| from 0.29 | the same, as [B, H, N, C]; backends name layouts instead of shapes |

On the CPU 0.25 too has keys and values side by side.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from locks_cpp.vllm.pages import PAGE_TOKENS
from locks_cpp.vllm.refusal import FP8_CACHE_DTYPES, Refusal


def key_value_views(cache: Any, kv_heads: int, head_dim: int) -> tuple[Any, Any]:
    """Keys and values, each [pages, 16, kv_heads, head_dim], as views of a layer's cache (torch or NumPy): the order of
    the memory behind them does not matter."""
    shape = tuple(cache.shape)
    if len(shape) == 4 and shape[1:] == (kv_heads, PAGE_TOKENS, 2 * head_dim):
        by_token = cache.swapaxes(1, 2)
        return by_token[..., :head_dim], by_token[..., head_dim:]
    if len(shape) == 5 and shape[2:] == (PAGE_TOKENS, kv_heads, head_dim) and 2 in shape[:2]:
        if shape[:2] == (2, 2):
            raise Refusal("a KV cache of 2 pages, whose keys and values cannot be told apart; give it more blocks")
        return (cache[:, 0], cache[:, 1]) if shape[1] == 2 else (cache[0], cache[1])
    raise Refusal(
        f"this vLLM hands over a KV cache of shape {list(shape)} for {kv_heads} KV heads of dimension {head_dim}; known are "
        f"[pages, 2, {PAGE_TOKENS}, heads, dim], [2, pages, {PAGE_TOKENS}, heads, dim] and "
        f"[pages, heads, {PAGE_TOKENS}, 2 dim]"
    )


def store_view(cache: Any) -> Any:
    """The summary store's cache as bytes [pages, bytes of a page]."""
    import torch

    by_page = cache.flatten(1) if cache.dim() != 4 else cache.flatten(0, 2)
    if by_page.data_ptr() != cache.data_ptr() or by_page.stride(-1) != 1:
        raise Refusal(f"the summaries of a page lie apart in a store of shape {list(cache.shape)}, strides {cache.stride()}")
    return by_page.view(torch.uint8)


# A page's bytes are a whole number of cache lines, and of what every vLLM can express as 16 tokens of an even number of
# elements.
STORE_ALIGNMENT = 128


def store_page_bytes(summary_bytes: int) -> int:
    return -(-summary_bytes // STORE_ALIGNMENT) * STORE_ALIGNMENT


def store_spec(block_tokens: int, page_bytes: int, dtype: Any) -> Any:
    """The cache specification of a summary store: `page_bytes` for every 16 tokens.

    Its element type is the layers' own: vLLM zeroes every new block of a cache of mixed precisions. It differs from the
    specification of the layers in shape alone, so that vLLM puts both into one group, with one block table.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    fields = {field.name for field in dataclasses.fields(FullAttentionSpec)}
    common = {"block_size": block_tokens, "num_kv_heads": 1, "dtype": dtype, **_quantisation(fields, dtype)}
    if {"tokens_per_state", "state_content_bytes"} <= fields:
        return FullAttentionSpec(**common, head_size=1, tokens_per_state=PAGE_TOKENS, state_content_bytes=page_bytes)
    if "head_size" in fields:
        half = page_bytes // (2 * PAGE_TOKENS * dtype.itemsize)
        return FullAttentionSpec(**common, head_size=half)
    raise Refusal(f"this vLLM's FullAttentionSpec is not understood; its fields are {', '.join(sorted(fields))}")


def _quantisation(fields: set[str], dtype: Any) -> dict[str, Any]:
    import torch

    if dtype is not torch.uint8 or "kv_quant_mode" not in fields:
        return {}
    from vllm.v1.kv_cache_interface import KVQuantMode

    return {"kv_quant_mode": KVQuantMode.FP8_PER_TENSOR}


def store_shape(num_pages: int, head_size: int) -> tuple[int, int]:
    """For vLLM up to 0.28, which asks the backend for a shape: store_spec's halves, together."""
    return (num_pages, 2 * PAGE_TOKENS * head_size)


def cache_dtype(kv_cache_dtype: str, model_config: Any) -> Any:
    """The element type of a KV cache: --kv-cache-dtype, or the model's; bytes for fp8, as vLLM has it."""
    import torch

    if kv_cache_dtype in FP8_CACHE_DTYPES:
        return torch.uint8
    return model_config.dtype if kv_cache_dtype == "auto" else getattr(torch, kv_cache_dtype)


def page_layouts() -> tuple[Any, ...]:
    """From 0.29: layouts in which one page of one layer is one piece of memory, whatever else a block holds."""
    from vllm.v1.kv_cache_layout import KVCacheLayout

    return (KVCacheLayout.LBHNC,)


def current_config() -> Any | None:
    """The configuration that vLLM is working for, if it says so."""
    from vllm import config

    getter = getattr(config, "get_current_vllm_config_or_none", None)
    if getter is not None:
        return getter()
    try:
        return config.get_current_vllm_config()
    except AssertionError:
        return None


def rows_per_decode(vllm_config: Any) -> int:
    """Query rows of a request that decodes: its token and the speculated ones."""
    speculative = getattr(vllm_config, "speculative_config", None)
    return 1 + int(getattr(speculative, "num_speculative_tokens", 0) or 0)


def max_rows_per_decode(vllm_config: Any) -> int:
    """More rows than these are a prompt's, where vLLM does not say which are."""
    return max(8, rows_per_decode(vllm_config))


def check_interface() -> None:
    """Raises Refusal naming what this vLLM lacks of the interface that the plug-in uses."""
    missing: list[str] = []

    def probe(module: str, *paths: str) -> None:
        import importlib

        try:
            found = importlib.import_module(module)
        except ImportError:
            missing.append(module)
            return
        for path in paths:
            place: Any = found
            for name in path.split("."):
                fields = getattr(place, "__dataclass_fields__", {})
                if not hasattr(place, name) and name not in fields:
                    missing.append(f"{module}.{path}")
                    break
                place = getattr(place, name, None)

    probe(
        "vllm.v1.attention.backend",
        "AttentionBackend.forward_includes_kv_cache_update",
        "AttentionBackend.get_supported_kernel_block_sizes",
        "AttentionImpl",
        "AttentionMetadataBuilder.build",
        *(
            f"CommonAttentionMetadata.{name}"
            for name in (
                "query_start_loc",
                "query_start_loc_cpu",
                "seq_lens",
                "block_table_tensor",
                "slot_mapping",
                "causal",
            )
        ),
    )
    probe("vllm.v1.kv_cache_interface", "FullAttentionSpec.head_size")
    probe("vllm.model_executor.layers.attention_layer_base", "AttentionLayerBase.get_kv_cache_spec")
    if missing:
        raise Refusal(f"this vLLM's attention interface is not understood; it lacks {', '.join(missing)}")


def omp_cpus(environment: dict[str, str]) -> set[int] | None:
    """The processors to which vLLM has bound its worker's OpenMP threads; None if it has not.

    OpenMP has bound the worker's main thread to the first of them, and threads started from there inherit that.
    """
    text = environment.get("GOMP_CPU_AFFINITY") or environment.get("OMP_PLACES", "")
    if "proclist=[" in environment.get("KMP_AFFINITY", ""):
        text = environment["KMP_AFFINITY"].split("proclist=[", 1)[1].split("]", 1)[0]
    numbers: set[int] = set()
    for piece in text.replace("{", " ").replace("}", " ").replace(",", " ").split():
        first, _, last = piece.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return None
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers or None
