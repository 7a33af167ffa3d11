"""vLLM's engine on a tiny model of random weights: LOCKS with a budget of everything against stock FlashAttention, and
sparse runs under what vLLM does to blocks and batches, with debug_check on: every summary that a step may read is compared
with a fresh one before each step."""

import argparse
import gc
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import models
from checks import FAILED, check
import numpy as np
import torch

NEW_TOKENS = 48
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16]}
EVERYTHING = {"budget_tokens": 16384, "min_context_tokens": 0, "debug_check": True}
PARTS = {"preset": "parts", "exact_head_tokens": 0, "debug_check": True}
PAGES = {"exact_head_tokens": 0, "debug_check": True}  # which are the default on CUDA
WITH_PAGES_TOO = ("graphs", "as vLLM comes", "fp8")  # the others differ in what comes before the choice
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
# Runs without LOCKS, and the log-probability by which the likeliest token may lead where an exact run parts from them, since
# they round differently: some units in the last place of the logits. With fp8 FlashAttention rounds weights to 4 bits, and a
# key, value or query that is rounded the other way is another by a sixteenth: compiled models differ from others.
FP8 = {"dtype": "bfloat16", "kv_cache_dtype": "fp8"}
HEADS = {f"heads of {dim}": {"head_dim": dim} for dim in (64, 80, 96, 192, 256)}
STOCKS = {
    **HEADS,
    "float16": {},
    "bfloat16": {"dtype": "bfloat16"},
    "fp8": FP8,
    "fp8 as vLLM comes": {**FP8, "compilation": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16]}},
}
NEAR_TIE = {"float16": 0.02, "bfloat16": 0.1, "fp8": 0.6, "fp8 as vLLM comes": 0.6, **dict.fromkeys(HEADS, 0.02)}
SCALES = {"_q_scale": 0.04, "_k_scale": 0.03, "_v_scale": 0.02}
# Engines that compute prompts as the first does. Elsewhere keys round differently, and random ones are chosen by a hair.
SAME_BITS = ("graphs", "bfloat16", "without graphs", "blocks of 64", "fp8")


def prompts() -> list[list[int]]:
    """Long ones with a common beginning, one with a loop in it, and short ones beside them."""
    draw = np.random.default_rng(11)
    common = draw.integers(5, 4000, 2048).tolist()
    long = [[*common, *draw.integers(5, 4000, more).tolist()] for more in (1, 961, 3100)]
    loop = draw.integers(5, 4000, 23).tolist() * 70
    return [*long, loop, *(draw.integers(5, 4000, 17 + 50 * short).tolist() for short in range(8))]


@dataclass
class Result:
    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[dict[int, float]]] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    replays: int = 0
    cached_tokens: int = 0  # of the last round's prompts


def kind_of(name: str, settings: dict[str, Any]) -> str:
    """Of STOCKS, for an engine."""
    return name if name in STOCKS else settings.get("kv_cache_dtype") or settings.get("dtype", "float16")


def set_scales(model) -> None:
    """As a checkpoint would, of queries, keys and values in fp8. For LLM.apply_model."""
    for layer in model.modules():
        for name, scale in SCALES.items():
            if hasattr(layer, name):
                getattr(layer, name).fill_(scale)


def count_replays() -> list[int]:
    count = [0]
    replay = torch.cuda.CUDAGraph.replay

    def counted(self):
        count[0] += 1
        return replay(self)

    torch.cuda.CUDAGraph.replay = counted
    return count


def run(
    folder: Path, locks: dict[str, Any] | None, rounds: int = 1, compilation: Any = None, head_dim: int = 128, **settings: Any
) -> Result:
    """Generates for all prompts, `rounds` times in one engine; the result is that of the last round."""
    from vllm import LLM, SamplingParams

    from locks_cpp.vllm import stats

    arguments = {
        "dtype": "float16",
        "max_model_len": 8192,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": 512 << 20,
        "gpu_memory_utilization": 0.5,
        "enable_prefix_caching": False,
        **settings,
    }
    llm = LLM(
        model=models.write(folder, "tiny", head_dim=head_dim),
        load_format="dummy",
        skip_tokenizer_init=True,
        seed=0,
        disable_log_stats=False,
        attention_config={"backend": "FLASH_ATTN" if locks is None else "CUSTOM"},
        additional_config={} if locks is None else {"locks": locks},
        compilation_config=GRAPHS if compilation is None else compilation,
        **arguments,
    )
    llm.apply_model(models.draw_weights)
    if settings.get("kv_cache_dtype") == "fp8":
        llm.apply_model(set_scales)
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, detokenize=False, logprobs=10)
    asked = [{"prompt_token_ids": ids} for ids in prompts()]
    before = REPLAYS[0]
    for _ in range(rounds):
        requests = llm.generate(asked, sampling, use_tqdm=False)
    outputs = [request.outputs[0] for request in requests]
    result = Result(replays=REPLAYS[0] - before, cached_tokens=sum(request.num_cached_tokens or 0 for request in requests))
    result.tokens = [list(output.token_ids) for output in outputs]
    result.logprobs = [[{token: p.logprob for token, p in step.items()} for step in output.logprobs] for output in outputs]
    result.stats = stats(llm.llm_engine.vllm_config)
    result.metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    del llm
    gc.collect()
    torch.cuda.empty_cache()
    return result


def partings(one: Result, other: Result) -> tuple[int, list[float], float]:
    """Of how many requests all tokens are equal; where they part, by how much the token of `one` leads that of `other`; and
    the largest difference of log-probabilities before."""
    equal, leads, drift = 0, [], 0.0
    for tokens, others, steps, other_steps in zip(one.tokens, other.tokens, one.logprobs, other.logprobs, strict=True):
        for token, other_token, step, other_step in zip(tokens, others, steps, other_steps, strict=True):
            for shared in step.keys() & other_step.keys():
                drift = max(drift, abs(step[shared] - other_step[shared]))
            if token != other_token:
                leads.append(step[token] - step.get(other_token, -100.0))
                break
        else:
            equal += 1
    return equal, leads, drift


def first_drift(one: Result, other: Result, position: int) -> float:
    """The largest difference of log-probabilities at a position that both reached by the same tokens."""
    worst = 0.0
    for tokens, others, steps, other_steps in zip(one.tokens, other.tokens, one.logprobs, other.logprobs, strict=True):
        if tokens[:position] == others[:position]:
            shared = steps[position].keys() & other_steps[position].keys()
            worst = max(worst, *(abs(steps[position][t] - other_steps[position][t]) for t in shared), 0.0)
    return worst


def check_sparse(name: str, stock: Result, sparse: Result, near: float, plain: Result | None = None) -> None:
    """`plain` is a sparse run that has to be like this one."""
    figures = sparse.stats
    check(
        name,
        figures["rows_sparse"] > 0
        and figures["pages_checked"] > 0
        and first_drift(stock, sparse, 0) < near
        and 0.001 < first_drift(stock, sparse, 1) < 3
        and (plain is None or first_drift(plain, sparse, 1) < near),
        f"from stock at the first two tokens {first_drift(stock, sparse, 0):.3f} {first_drift(stock, sparse, 1):.3f}, "
        + ("" if plain is None else f"from the first sparse run {first_drift(plain, sparse, 1):.3f}; ")
        + f"{sparse.replays} replays, {figures['rows_sparse']:,.0f} rows sparse, {figures['rows_dense_short']:,.0f} short, "
        f"{figures['rows_prompt']:,.0f} of prompts, attended {figures['attended_share']:.3f}, coverage "
        f"{figures['coverage']:.3f} ({figures['rows_reported']:.0f} sampled), {figures['pages_checked']:,.0f} summaries "
        f"checked, {sparse.metrics.get('vllm:num_preemptions', 0):.0f} preemptions, "
        f"{sparse.cached_tokens} prompt tokens cached",
    )


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", type=Path, required=True)
    arguments.add_argument("--only", default="", help="names of runs, with commas between")
    options = arguments.parse_args()
    folder = options.models
    wanted = set(filter(None, options.only.split(",")))

    engines: dict[str, dict[str, Any]] = {
        "graphs": {},
        "bfloat16": {"dtype": "bfloat16"},
        "without graphs": {"compilation": {"mode": 0, "cudagraph_mode": "NONE"}},
        "as vLLM comes": {"compilation": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16]}},
        "odd chunks": {"max_num_batched_tokens": 301},
        "prefix cache": {"enable_prefix_caching": True, "rounds": 2},
        "preemption": {"num_gpu_blocks_override": 646},
        "blocks of 64": {"block_size": 64},
        "speculation": {"speculative_config": NGRAM},
        **HEADS,
        "fp8": STOCKS["fp8"],
        "fp8 as vLLM comes": STOCKS["fp8 as vLLM comes"],
        "fp8 with a prefix cache and odd chunks": {
            **FP8,
            "enable_prefix_caching": True,
            "rounds": 2,
            "max_num_batched_tokens": 301,
        },
    }
    engines = {name: settings for name, settings in engines.items() if not wanted or name in wanted}
    kinds = {kind_of(name, settings) for name, settings in engines.items()}
    stocks = {kind: run(folder, None, **settings) for kind, settings in STOCKS.items() if kind in kinds}
    check("without LOCKS there is no trace of it", "locks_cpp.vllm.engine" not in sys.modules)
    for locks, settings, words in (
        ({"budget": 1}, {}, "unknown setting budget"),
        ({"threads": 2}, {}, "threads is for the CPU"),
        ({}, {"kv_cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype fp8_e5m2; served are"),
        ({}, {"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8 with --dtype float16"),
    ):
        try:
            run(folder, locks, **settings)
            said = "nothing"
        except Exception as error:
            said = str(error)
        check(f"refused: {locks or settings}", "LOCKS refuses to start: " in said and words in said, said[:200])

    plains: dict[str, Result] = {}
    for name, settings in engines.items():
        kind = kind_of(name, settings)
        stock, near = stocks[kind], NEAR_TIE[kind]
        result = run(folder, EVERYTHING, **settings)
        equal, leads, drift = partings(stock, result)
        check(
            f"{name}: a budget of everything gives stock FlashAttention's tokens, or parts at a near tie",
            all(lead < near for lead in leads) and drift < near and result.stats["rows_sparse"] == 0,
            f"{equal} of {len(stock.tokens)} equal, leads {[round(lead, 3) for lead in leads]}, drift {drift:.3f}, "
            f"{result.replays} replays, {result.stats['pages_checked']:,.0f} summaries checked",
        )
        sparse = run(folder, PARTS, **settings)
        plain = plains.setdefault(kind, sparse)
        check_sparse(f"{name}: parts", stock, sparse, near, plain if name in SAME_BITS else None)
        if name in WITH_PAGES_TOO:
            pages = run(folder, PAGES, **settings)
            check_sparse(f"{name}: whole pages, the default", stock, pages, near)
            apart = first_drift(sparse, pages, 1)
            check(f"{name}: whole pages are another choice", apart > 0.001, f"{apart:.3f} from parts at the second token")
        if name == "graphs":
            check("graphs: decode runs in them", min(result.replays, sparse.replays, pages.replays) > 40)
            exact = run(folder, {"exact_head_tokens": 1 << 20, "debug_check": True}, **settings)
            equal, leads, drift = partings(stock, exact)
            check(
                "graphs: contexts within exact_head_tokens are exact",
                all(lead < near for lead in leads) and drift < near and exact.stats["rows_sparse"] == 0,
                f"{equal} of {len(stock.tokens)} equal, drift {drift:.3f}, {exact.replays} replays, "
                f"{exact.stats['rows_dense_short']:,.0f} rows short, {exact.stats['pages_checked']:,.0f} summaries checked",
            )
        if name == "preemption":
            check("preemption: it happened", sparse.metrics["vllm:num_preemptions"] > 0)
        if name == "prefix cache":
            check("prefix cache: it was hit", sparse.cached_tokens > 10000)
    print(f"tokens: {len(FAILED)} failed", flush=True)
    return 1 if FAILED else 0


if __name__ == "__main__":
    REPLAYS = count_replays()
    sys.exit(main())
