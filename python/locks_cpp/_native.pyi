from typing import Any

import numpy as np
from numpy.typing import NDArray

from locks_cpp.arrays import Array
from locks_cpp.config import Config

__version__: str
PAGE_TOKENS: int
REPORT_BYTES: int

def formats() -> tuple[str, ...]:
    """Names of the summary formats."""

def targets() -> tuple[str, ...]:
    """Names of the CPU targets that run here, fastest first."""

def check_config(config: Config) -> None: ...
def default_config() -> dict[str, Any]: ...
def paper_config() -> dict[str, Any]: ...
def page_bytes(format: str, head_dim: int, kv_heads: int, values: bool) -> int:
    """Bytes of one page's summaries: the records of all KV heads side by side, and the value parts (if any) behind them."""

class ThreadPool:
    """Threads for calls that are given it; calls that share it take turns. It does not survive a fork."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class Summaries:
    """The summaries of one layer, by page number, in memory of the caller's: uint8 [pages, at least page_bytes].

    Pages may lie any distance apart. Nothing is allocated or copied; the memory is kept alive.
    """

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
        pool: ThreadPool | None,
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
    ) -> NDArray[np.uint8]: ...

def summarize(
    keys: Array, values: Array | None, pages: Array, summaries: Summaries, pool: ThreadPool | None
) -> tuple[int, int]: ...
def prefill(
    queries: Array,
    keys: Array,
    values: Array,
    pages: Array,
    visible_tokens: Array,
    out: Array,
    *,
    softmax_scale: float,
    pool: ThreadPool | None = None,
) -> None:
    """Exact attention of one request's query rows.

    queries, out: float32 [rows, query_heads, head_dim]. pages: int32 [n], the request's pages in order, block by block.
    visible_tokens: int32 [rows]: row i sees the request's first visible_tokens[i] tokens, at least 1.
    """
