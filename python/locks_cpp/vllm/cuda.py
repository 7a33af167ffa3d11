"""The attention backend on CUDA, `--attention-backend CUSTOM`: vLLM's FlashAttention, whose cache and kernels for prompts it
uses, with decoding by LOCKS."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend

from locks_cpp.vllm.pages import PAGE_TOKENS
from locks_cpp.vllm.refusal import CUDA_CACHE_DTYPES, FP8_CACHE_DTYPES, HEAD_DIMS, Refusal


def why_unavailable() -> str:
    try:
        from locks_cpp import cuda
    except ImportError as error:
        return f"the native module of locks_cpp cannot be loaded: {error}"
    return cuda.why_unavailable()


def why_no_prompts(kv_cache_dtype: Any, model_dtype: Any) -> str:
    """Why FlashAttention, which attends to prompts, cannot have an fp8 cache here. Empty if it can."""
    if kv_cache_dtype not in FP8_CACHE_DTYPES:
        return ""
    if model_dtype is not None and model_dtype is not torch.bfloat16:
        name = str(model_dtype).removeprefix("torch.")
        return f"with --dtype {name}: vLLM's FlashAttention attends to prompts, and writes bfloat16 where the cache is fp8"
    if not FlashAttentionBackend.supports_kv_cache_dtype(kv_cache_dtype):
        return "where vLLM's FlashAttention, which attends to prompts, does not read it: it is for compute capability 9.0"
    return ""


class CudaBackend(FlashAttentionBackend):
    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> Any:
        from locks_cpp.vllm.cuda_impl import CudaImpl

        return CudaImpl

    @staticmethod
    def get_builder_cls() -> Any:
        from locks_cpp.vllm.cuda_builder import CudaStepMetadataBuilder

        return CudaStepMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(*args: Any, **kwargs: Any) -> list[Any]:
        return [PAGE_TOKENS]

    @classmethod
    def validate_configuration(cls, *args: Any, **kwargs: Any) -> list[str]:
        """vLLM ends the start with these reasons, before it reads weights."""
        unavailable = why_unavailable()
        cache_dtype = kwargs.get("kv_cache_dtype")
        if unavailable:
            reasons = [unavailable]
        elif not cls.supports_kv_cache_dtype(cache_dtype):
            reasons = [f"--kv-cache-dtype {cache_dtype}; served are {', '.join(CUDA_CACHE_DTYPES)}"]
        elif why := why_no_prompts(cache_dtype, kwargs.get("dtype")):
            reasons = [f"--kv-cache-dtype {cache_dtype} {why}"]
        else:
            reasons = list(super().validate_configuration(*args, **kwargs))
        return [str(Refusal("; ".join(reasons)))] if reasons else []

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size in HEAD_DIMS

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: Any) -> bool:
        return kv_cache_dtype is None or kv_cache_dtype in CUDA_CACHE_DTYPES

    @classmethod
    def supports_attn_type(cls, attn_type: Any) -> bool:
        return getattr(attn_type, "value", attn_type) == "decoder"

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return False

    @classmethod
    def supports_sink(cls) -> bool:
        return False

    @classmethod
    def supports_non_causal(cls) -> bool:
        return False

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        return False

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return False

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return False
