from typing import Any

from locks_cpp.arrays import Array
from locks_cpp.config import Config

def why_unavailable() -> str: ...
def device() -> dict[str, Any]: ...
def page_bytes(format: str, head_dim: int, kv_heads: int, values: bool) -> int: ...

class Summaries:
    """As locks_cpp.Summaries, in CUDA memory; rows and their strides are multiples of 16 bytes."""

    def __init__(self, memory: Array, *, format: str, head_dim: int, kv_heads: int, values: bool) -> None: ...
    @property
    def num_pages(self) -> int: ...

class Plan:
    def __init__(
        self,
        config: Config,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        softmax_scale: float,
        max_requests: int,
        max_context_tokens: int,
    ) -> None: ...
    @property
    def workspace_bytes(self) -> int: ...
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
    ) -> None: ...

def summarize(
    keys: Array,
    values: Array | None,
    pages: Array,
    summaries: Summaries,
    *,
    key_scale: Array | None = None,
    value_scale: Array | None = None,
    stream: int,
) -> None: ...
def summarize_filled(
    keys: Array,
    values: Array | None,
    slots: Array,
    summaries: Summaries,
    *,
    key_scale: Array | None = None,
    value_scale: Array | None = None,
    stream: int,
) -> None: ...
def attend_workspace_bytes(*, query_heads: int, kv_heads: int, head_dim: int, requests: int) -> int: ...
def attend(
    queries: Array,
    keys: Array,
    values: Array,
    block_tables: Array,
    context_tokens: Array,
    out: Array,
    *,
    softmax_scale: float,
    key_scale: Array | None = None,
    value_scale: Array | None = None,
    workspace: Array,
    stream: int,
) -> None: ...
def copy_rows(source: Array, target: Array, *, scale: Array | None = None, stream: int) -> None:
    """Between float32, float16, bfloat16 and e4m3, [rows, heads, head_dim] of any strides, in one launch. A number of e4m3
    is its element times `scale`; what is too large becomes the largest."""
