"""The place of the CUDA backend: `--attention-backend CUSTOM`. This build has none, and says so."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backend import AttentionBackend

from locks_cpp.vllm.refusal import Refusal

REASON = "this build of locks_cpp has no CUDA kernels for vLLM yet; on the CPU it has"


class CudaBackend(AttentionBackend):
    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @classmethod
    def validate_configuration(cls, *args: Any, **kwargs: Any) -> list[str]:
        return [str(Refusal(REASON))]

    @staticmethod
    def get_impl_cls() -> Any:
        raise Refusal(REASON)

    @staticmethod
    def get_builder_cls() -> Any:
        raise Refusal(REASON)
