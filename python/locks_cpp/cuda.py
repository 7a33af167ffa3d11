"""The library on an NVIDIA GPU, over arrays in its memory (torch, CuPy).

Calls queue their work on `stream`, a cudaStream_t as a number (`torch.cuda.current_stream().cuda_stream`), wait for nothing
and allocate nothing: they can be captured in a CUDA graph. The current device must be that of the arrays. Types, shapes and
alignment are checked as on the CPU; what lies on the device (lengths, block numbers, pages, slots) is not.

Besides the CPU's types, keys and values may be e4m3 (torch.float8_e4m3fn, or its bytes as uint8), both or none. Then
`key_scale` and `value_scale`, float32 [1] on the device, are what their elements are multiplied by, and None is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from locks_cpp import _native
from locks_cpp.arrays import Array
from locks_cpp.config import Config

try:
    from locks_cpp import _cuda
    from locks_cpp._cuda import (
        Summaries,
        attend,
        attend_workspace_bytes,
        copy_rows,
        page_bytes,
        summarize,
        summarize_filled,
    )
except ImportError as _error:
    _cuda = None  # type: ignore[assignment]
    _why = (
        "this build of locks_cpp has no CUDA"
        if find_spec("locks_cpp._cuda") is None
        else f"the CUDA module of locks_cpp cannot be loaded: {_error}"
    )

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(_why)


__all__ = [
    "REPORT_BYTES",
    "DecodePlan",
    "Device",
    "Summaries",
    "attend",
    "attend_workspace_bytes",
    "copy_rows",
    "current_device",
    "page_bytes",
    "summarize",
    "summarize_filled",
    "why_unavailable",
]

REPORT_BYTES = _native.REPORT_BYTES


def why_unavailable() -> str:
    """Why nothing here can be called: no CUDA in this build, no device, a driver or a device too old, code for other devices.
    Empty if it can."""
    return _why if _cuda is None else _cuda.why_unavailable()


@dataclass(frozen=True)
class Device:
    name: str
    compute_capability: int  # 90 for 9.0
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int


def current_device() -> Device:
    if _cuda is None:
        raise ImportError(_why)
    return Device(**_cuda.device())


class DecodePlan:
    """One decode step of one layer, for as many layers as share a geometry and run one after another."""

    def __init__(
        self,
        config: Config,
        *,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        softmax_scale: float,
        max_requests: int,
        max_context_tokens: int,
    ) -> None:
        if not isinstance(config, Config):
            raise ValueError(f"config: expected a locks_cpp.Config, got an object of {type(config)}")
        if _cuda is None:
            raise ImportError(_why)
        self._plan = _cuda.Plan(config, query_heads, kv_heads, head_dim, softmax_scale, max_requests, max_context_tokens)

    @property
    def workspace_bytes(self) -> int:
        return self._plan.workspace_bytes

    def run(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        summaries: Summaries,
        block_tables: Array,
        context_tokens: Array,
        out: Array,
        *,
        key_scale: Array | None = None,
        value_scale: Array | None = None,
        workspace: Array,
        reports: Array | None = None,
        stream: int,
    ) -> None:
        """Queues one step, which writes the attention output to `out`; shapes as in locks_cpp.DecodePlan.run, `out` in
        float32, float16 or bfloat16.

        workspace: uint8 [at least workspace_bytes], aligned to 64 bytes, in use until the step is done. reports: uint8
        [requests, REPORT_BYTES], for locks_cpp.DecodeReport.read once they are on the CPU. A request of 0 context tokens
        gives zeros; any strides of `queries`, `block_tables` and `out` will do, 0 for tables that requests share.
        """
        self._plan.run(
            queries,
            keys,
            values,
            summaries,
            block_tables,
            context_tokens,
            out,
            key_scale=key_scale,
            value_scale=value_scale,
            workspace=workspace,
            reports=reports,
            stream=stream,
        )
