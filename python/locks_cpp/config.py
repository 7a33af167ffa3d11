from __future__ import annotations

from dataclasses import dataclass

from locks_cpp import _native


@dataclass(frozen=True)
class Config:
    """How much is attended, and what stands in for the rest. Names and defaults are those of the C++ library."""

    format: str = "graded8"  # of the summaries; formats() lists them
    budget_tokens: int = 512  # every attended token counts: sink, recent and the page being filled included
    sink_tokens: int = 16  # the first pages, always attended (rounded up to pages)
    recent_tokens: int = 64  # at least this many last tokens are always attended
    part_tokens: int = 4  # 1, 2, 4, 8: parts of pages are selected; 16: whole pages
    candidate_factor: float = 4.0  # parts are looked for in this many times the budget's worth of best pages
    completion_fraction: float = 0.1  # of the selectable pages, and what the budget holds; 0: none stand in
    combine: str = "sum"  # how the query heads of a KV head share a list: "sum", "max", "per_query_head"
    min_context_tokens: int = 1024  # shorter contexts are attended whole

    def __post_init__(self) -> None:
        _native.check_config(self)

    @classmethod
    def paper(cls) -> Config:
        """The published method: whole pages of the `paper` format, 2048 tokens, nothing completed."""
        return cls(**_native.paper_config())

    @property
    def keeps_values(self) -> bool:
        """Whether the summaries need their value parts."""
        return self.completion_fraction > 0
