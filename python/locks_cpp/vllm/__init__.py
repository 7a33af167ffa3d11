"""LOCKS for unmodified vLLM. vLLM finds `register` through the entry-point group `vllm.general_plugins`.

Nothing here imports vLLM, torch or the native module until vLLM asks for a backend: the plug-in must leave no trace in an
engine that does not use it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

__all__ = ["register", "stats"]

# vLLM gives handlers to the loggers below "vllm" only.
LOGGER_NAME = "vllm.locks_cpp"


def register() -> None:
    """Tells vLLM's backend registry where the backends are. Called once in each of vLLM's processes; must not raise,
    because an exception here would end engines that never asked for LOCKS."""
    try:
        _register()
    except Exception as error:
        logging.getLogger(LOGGER_NAME).error(
            "LOCKS is not available: this vLLM's backend registry is not understood (%s: %s)", type(error).__name__, error
        )


def _register() -> None:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if current_platform.is_cpu():
        # The CPU platform looks at no other slot than these, whatever --attention-backend says.
        register_backend(AttentionBackendEnum.CPU_ATTN, "locks_cpp.vllm.backend.CpuBackend")
        for name in ("CPU_MLA", "AMX_MLA"):
            if name in AttentionBackendEnum.__members__:
                register_backend(AttentionBackendEnum[name], f"locks_cpp.vllm.mla.{name}")
    elif current_platform.is_cuda():
        register_backend(AttentionBackendEnum.CUSTOM, "locks_cpp.vllm.cuda.CudaBackend")


def stats(vllm_config: Any) -> dict[str, Any]:
    """What the engine of `vllm_config` did so far in this process; empty if LOCKS is not active in it."""
    module = sys.modules.get("locks_cpp.vllm.engine")  # loaded by the first engine in which LOCKS is active
    engine = None if module is None else module.engine_of(vllm_config)
    return {} if engine is None else engine.metrics.as_dict()
