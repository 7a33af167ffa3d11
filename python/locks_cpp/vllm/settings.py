"""The settings of one engine: `additional_config["locks"]`, read and checked. Needs neither vLLM nor torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from locks_cpp.vllm.pages import PAGE_TOKENS
from locks_cpp.vllm.refusal import Refusal

KEY = "locks"
PRESETS = ("default", "parts", "pages", "paper")
EXACT_HEAD_TOKENS = 163840  # of a step; with more, choosing and attending what was chosen is sooner done on an H200


@dataclasses.dataclass(frozen=True)
class Settings:
    config: Any  # locks_cpp.Config
    threads: int | None = None  # None: as many as vLLM's worker uses
    exact_head_tokens: int | None = None  # on CUDA: exact_below(). None: EXACT_HEAD_TOKENS
    log_interval_seconds: float = 60.0  # 0: only at the end
    debug_check: bool = False  # compares every summary in use with a fresh one, at every step: slow

    @property
    def selects(self) -> str:
        """For the line that says that LOCKS is active."""
        return "whole pages" if self.config.part_tokens == PAGE_TOKENS else f"parts of {self.config.part_tokens}"

    @property
    def exact_on_cuda(self) -> int:
        return EXACT_HEAD_TOKENS if self.exact_head_tokens is None else self.exact_head_tokens

    def exact_below(self, rows: int, query_heads: int, kv_heads: int) -> int:
        """In a step of so many rows shorter contexts are exact. CUDA graphs keep what they were captured with."""
        lists = query_heads if self.config.combine == "per_query_head" else kv_heads  # each reads for itself
        exact = self.exact_on_cuda // max(1, rows * lists)
        return max(self.config.min_context_tokens, exact + 1 if exact > 0 else 0)


def is_configured(additional_config: Any) -> bool:
    return isinstance(additional_config, Mapping) and additional_config.get(KEY) is not None


def given(additional_config: Any) -> Any:
    """What is to be parsed: nothing but defaults, if LOCKS was asked for in another way (--attention-backend CUSTOM)."""
    return additional_config[KEY] if is_configured(additional_config) else {}


def parse(given: Any, *, cuda: bool) -> Settings:
    """Reads the value of `additional_config["locks"]`, for an engine on CUDA or on the CPU. Raises Refusal naming the
    setting, what came and what may be."""
    import locks_cpp

    if not isinstance(given, Mapping):
        raise Refusal(f"additional_config['{KEY}'] is {given!r}; expected an object of settings, for example {{}}")
    own = {field.name: field for field in dataclasses.fields(Settings) if field.name != "config"}
    library = {field.name: field for field in dataclasses.fields(locks_cpp.Config)}
    known = ["preset", *library, *own]
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise Refusal(f"unknown setting {', '.join(sorted(unknown))}; the settings are {', '.join(known)}")

    preset = given.get("preset", "default")
    if preset not in PRESETS:
        raise Refusal(f"preset is {preset!r}; expected {', '.join(PRESETS[:-1])} or {PRESETS[-1]}")
    base = _preset(preset, cuda)
    chosen = {name: _like(name, given[name], getattr(base, name)) for name in library if name in given}
    try:
        config = dataclasses.replace(base, **chosen)
    except ValueError as error:
        raise Refusal(str(error)) from error
    threads, exact = given.get("threads"), given.get("exact_head_tokens")
    return Settings(
        config=config,
        threads=None if threads is None else _at_least("threads", _like("threads", threads, 1), 1),
        exact_head_tokens=None
        if exact is None
        else _at_least("exact_head_tokens", _like("exact_head_tokens", exact, 1), 0),
        log_interval_seconds=_at_least(
            "log_interval_seconds", _like("log_interval_seconds", given.get("log_interval_seconds", 60.0), 60.0), 0
        ),
        debug_check=_like("debug_check", given.get("debug_check", False), False),
    )


def _preset(name: str, cuda: bool) -> Any:
    """A locks_cpp.Config. By default pages on CUDA: they need twice the tokens to be as near to dense attention as parts,
    but two kernels less, and a GPU reads the tokens sooner than it runs the kernels (docs/VLLM.md has the figures)."""
    import locks_cpp

    if name == "default":
        name = "pages" if cuda else "parts"
    if name == "paper":
        return locks_cpp.Config.paper()
    return locks_cpp.Config(part_tokens=PAGE_TOKENS, budget_tokens=1024) if name == "pages" else locks_cpp.Config()


def _like(name: str, value: Any, example: Any) -> Any:
    """The value, if it is of the example's type; a whole number may stand for a float, and nothing else for another."""
    wanted = type(example)
    if isinstance(value, bool) != (wanted is bool):
        fits = False
    else:
        fits = isinstance(value, wanted) or (wanted is float and isinstance(value, int))
    if not fits:
        words = {int: "a whole number", float: "a number", str: "a name", bool: "true or false"}
        raise Refusal(f"{name} is {value!r}; expected {words.get(wanted, wanted.__name__)}")
    return wanted(value)


def _at_least(name: str, value: Any, least: int) -> Any:
    if not value >= least:
        raise Refusal(f"{name} is {value}; expected at least {least}")
    return value
