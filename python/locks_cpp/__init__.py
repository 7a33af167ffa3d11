"""Sparse decode attention over a paged KV cache, on the CPU.

Arrays are anything with `__dlpack__` in the CPU's memory (NumPy, torch), of any strides as long as the last axis is
contiguous. Every mistake is a ValueError that names the argument, what was expected and what came. docs/PYTHON.md has an
example.
"""

from typing import NoReturn

try:
    from locks_cpp._native import PAGE_TOKENS, Summaries, ThreadPool, __version__, formats, page_bytes, prefill, targets
    from locks_cpp.arrays import Array
    from locks_cpp.config import Config
    from locks_cpp.decode import DecodePlan, DecodeReport
    from locks_cpp.summaries import SummarizeReport, summarize
except ImportError as _error:  # locks_cpp.vllm must be importable without it, to refuse by name
    _why = str(_error)

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"the native module of locks_cpp cannot be loaded: {_why}")


__all__ = [
    "PAGE_TOKENS",
    "Array",
    "Config",
    "DecodePlan",
    "DecodeReport",
    "Summaries",
    "SummarizeReport",
    "ThreadPool",
    "__version__",
    "formats",
    "page_bytes",
    "prefill",
    "summarize",
    "targets",
]
