"""vLLM's MLA backends for the CPU, by their names; with LOCKS configured they refuse. The place for LOCKS on MLA models."""

from __future__ import annotations

from typing import Any

from locks_cpp.vllm import compat, settings
from locks_cpp.vllm.refusal import refuse_engine


def __getattr__(name: str) -> Any:
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    if name not in ("CPU_MLA", "AMX_MLA"):
        raise AttributeError(name)
    stock = resolve_obj_by_qualname(AttentionBackendEnum[name].value)

    class MlaBackend(stock):  # type: ignore[misc, valid-type]
        @staticmethod
        def get_impl_cls() -> Any:
            config = compat.current_config()
            if config is not None and settings.is_configured(config.additional_config):
                refuse_engine(config)
            return stock.get_impl_cls()

    MlaBackend.__name__ = MlaBackend.__qualname__ = name
    globals()[name] = MlaBackend
    return MlaBackend
