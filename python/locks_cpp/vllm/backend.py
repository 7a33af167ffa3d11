"""The CPU's attention backend: vLLM's own, unless the engine's configuration has settings for LOCKS.

vLLM finds one class per process and keeps it, but a process may hold several engines; so every method asks the
configuration that vLLM is working for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from locks_cpp.vllm import compat, settings
from locks_cpp.vllm.pages import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_active() -> bool:
    config = compat.current_config()
    return config is not None and settings.is_configured(config.additional_config)


class CpuBackend(CPUAttentionBackend):
    @staticmethod
    def get_impl_cls() -> Any:
        if not is_active():
            return CPUAttentionBackend.get_impl_cls()
        from locks_cpp.vllm.impl import CpuImpl

        return CpuImpl

    @staticmethod
    def get_builder_cls() -> Any:
        if not is_active():
            return CPUAttentionBackend.get_builder_cls()
        from locks_cpp.vllm.builder import StepMetadataBuilder

        return StepMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(*args: Any, **kwargs: Any) -> Sequence[Any]:
        if not is_active():
            return CPUAttentionBackend.get_supported_kernel_block_sizes(*args, **kwargs)
        return [PAGE_TOKENS]
