"""One engine, from its start to its end, and what came of it."""

import gc
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

NEW_TOKENS = 40


def prompts() -> list[list[int]]:
    """Two long prompts with a common beginning, a third with a loop in it, and short ones beside them."""
    draw = np.random.default_rng(11)
    common = draw.integers(5, 1000, 448).tolist()
    long = [[*common, *draw.integers(5, 1000, more).tolist()] for more in (252, 461)]
    loop = draw.integers(5, 1000, 23).tolist() * 30
    return [*long, loop, *(draw.integers(5, 1000, 17 + 5 * short).tolist() for short in range(9))]


@dataclass
class Result:
    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[dict[int, float]]] = field(default_factory=list)  # of the likeliest tokens, by position
    stats: dict[str, Any] = field(default_factory=dict)
    vllm_metrics: dict[str, float] = field(default_factory=dict)
    layers: dict[str, Any] = field(default_factory=dict)
    num_blocks: int = 0


def run(model: Path, locks: dict[str, Any] | None, rounds: int = 1, **settings: Any) -> Result:
    """Generates for all prompts, `rounds` times in one engine; the result is that of the last round."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    from locks_cpp.vllm import stats

    keep_llvmlite_from_vllm()
    arguments = {
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 256,
        "kv_cache_memory_bytes": 64 << 20,
        "enable_prefix_caching": False,
        **settings,
    }
    llm = LLM(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        seed=0,
        disable_log_stats=False,
        additional_config={} if locks is None else {"locks": locks},
        **arguments,
    )
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, detokenize=False, logprobs=10)
    asked = [{"prompt_token_ids": ids} for ids in prompts()]
    result = Result()
    failure = None
    try:
        for _ in range(rounds):
            outputs = [output.outputs[0] for output in llm.generate(asked, sampling, use_tqdm=False)]
    except Exception as error:
        failure = RuntimeError(f"{type(error).__name__}: {error}")  # without the frames that hold the engine
    if failure is not None:
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
        raise failure
    result.tokens = [list(output.token_ids) for output in outputs]
    result.logprobs = [[{token: p.logprob for token, p in step.items()} for step in output.logprobs] for output in outputs]
    result.stats = stats(llm.llm_engine.vllm_config)
    result.vllm_metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    result.layers = {
        name: (
            type(layer).__name__,
            type(getattr(layer, "impl", None)).__name__,
            tuple(layer.kv_cache.shape),
            str(layer.kv_cache.dtype),
            bool(layer.kv_cache.any()),
        )
        for name, layer in llm.llm_engine.vllm_config.compilation_config.static_forward_context.items()
    }
    result.num_blocks = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
    del llm
    gc.collect()
    return result


def keep_llvmlite_from_vllm() -> None:
    """Once n-gram speculation has loaded numba, another engine cannot start in the same process: vLLM 0.32 asks everything
    in every module for its `__dict__`, and llvmlite's library object takes that for a function of the library."""
    module = sys.modules.get("llvmlite.binding.ffi")
    if module is not None:
        module.lib._fntab["__dict__"] = {}


def drift(one: Result, other: Result, position: int) -> float:
    """The largest difference of log-probabilities at a position up to which both chose the same tokens; over the requests.

    Position 0 comes from the prompt's last row, which is exact; position 1 from the first decode row."""
    worst = 0.0
    for request, (a, b) in enumerate(zip(one.logprobs, other.logprobs, strict=True)):
        if one.tokens[request][:position] == other.tokens[request][:position]:
            shared = a[position].keys() & b[position].keys()
            worst = (
                max(worst, *(abs(a[position][token] - b[position][token]) for token in shared)) if shared else float("inf")
            )
    return worst
