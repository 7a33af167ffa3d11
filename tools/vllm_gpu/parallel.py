"""Two GPUs, as tensor ranks and as a pipeline: LOCKS on two ranks against LOCKS on one, with the same weights, in decode
graphs. All engines run at once, each in a process of its own."""

import argparse
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import models
from checks import FAILED, check
import numpy as np
import tokens
import torch
from tokens import GRAPHS, NEW_TOKENS, Result, partings, prompts

# Everything, and parts, also of short contexts; the bounds below were found with these.
LOCKS = ({"budget_tokens": 16384, "min_context_tokens": 0}, {"preset": "parts", "exact_head_tokens": 0})
ONE, TENSOR, PIPELINE = "one rank", "two tensor ranks", "a pipeline of two"
RANKS = {ONE: {}, TENSOR: {"tensor_parallel_size": 2}, PIPELINE: {"pipeline_parallel_size": 2}}
CACHE_BYTES = 512 << 20  # of each rank
FORCED_TOKENS = 32
# Query and KV heads: GLM-4-9B's, Llama-3.1-8B's, and one KV head, which both of two tensor ranks have.
SHAPES = {"32/4 heads": (32, 4), "32/8 heads": (32, 8), "8/1 heads": (8, 1)}
# Of log-probabilities. Ranks round their parts of each sum to float16 before they add them: a dozen units in the last place
# of the logits.
NEAR = 0.05
# So keys round differently too, and among random ones some are chosen by a hair. Where both choose alike but for those,
# their difference from each other is at most this part of that from exact attention; choices that have nothing in common
# give about 1.4. A pipeline's ranks compute the sums of one rank.
MOST_OF_THE_APPROXIMATION = {TENSOR: 1.0, PIPELINE: 0.3}
COVERAGE_NEAR = 0.03  # a few samples each


def of_rank(worker: Any) -> dict[str, Any]:
    """Runs in each rank's process."""
    import tokens
    import torch

    from locks_cpp import cuda
    from locks_cpp.vllm import stats
    from locks_cpp.vllm.store import SummaryStore

    config = worker.vllm_config
    layers = config.compilation_config.static_forward_context.values()
    stores = [layer for layer in layers if isinstance(layer, SummaryStore)]
    figures = stats(config)
    return {
        "device": torch.cuda.current_device(),
        "on": stores[0].engine.resources(),
        "card": cuda.current_device().name,
        "kv_heads": stores[0].shape["kv_heads"],
        "summary_bytes": sum(store.kv_cache.nbytes for store in stores),
        "cache_bytes": sum(layer.kv_cache.nbytes for layer in layers if not isinstance(layer, SummaryStore)),
        "replays": getattr(tokens, "REPLAYS", [0])[0],
        **{name: figures[name] for name in ("rows_sparse", "rows_reported", "attended_share", "coverage")},
    }


def run(model: str, ranks: dict[str, int], locks: dict[str, Any]) -> dict[str, Any]:
    """What the model says by itself, the log-probabilities where each request is made to say one token again and again, and
    the figures of each rank."""
    from vllm import LLM, SamplingParams

    tokens.REPLAYS = tokens.count_replays()  # before vLLM forks its workers
    llm = LLM(
        model=model,
        skip_tokenizer_init=True,
        seed=0,
        dtype="float16",
        max_model_len=8192,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=CACHE_BYTES,
        gpu_memory_utilization=0.5,
        enable_prefix_caching=False,
        attention_config={"backend": "CUSTOM"},
        additional_config={"locks": locks},
        compilation_config=GRAPHS,
        **ranks,
    )
    common = {"temperature": 0, "ignore_eos": True, "detokenize": False}
    asked = [{"prompt_token_ids": ids} for ids in prompts()]
    free = llm.generate(asked, SamplingParams(max_tokens=NEW_TOKENS, logprobs=10, **common), use_tqdm=False)
    one_token = [
        SamplingParams(max_tokens=FORCED_TOKENS, logprobs=20, allowed_token_ids=[7 + number], **common)
        for number in range(len(asked))
    ]
    forced = llm.generate(asked, one_token, use_tqdm=False)
    return {
        "tokens": [list(request.outputs[0].token_ids) for request in free],
        "logprobs": logprobs_of(free),
        "forced": logprobs_of(forced),
        "ranks": llm.collective_rpc(of_rank),
    }


def logprobs_of(requests: Any) -> list[list[dict[int, float]]]:
    return [[{token: p.logprob for token, p in step.items()} for step in r.outputs[0].logprobs] for r in requests]


def run_all(arguments: list[dict[str, Any]], folder: Path, seconds: float) -> list[dict[str, Any] | None]:
    """None for an engine that failed or took too long; what it said is printed then."""
    started: list[tuple[subprocess.Popen[bytes], Path, Path]] = []
    found: list[dict[str, Any] | None] = []
    try:
        for number, given in enumerate(arguments):
            result, log = folder / f"{number}.pickle", folder / f"{number}.log"
            command = [sys.executable, __file__, "--run", json.dumps(given), "--result", str(result)]
            with log.open("w") as output:
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            started.append((process, result, log))
        end = time.monotonic() + seconds
        for given, (process, result, log) in zip(arguments, started, strict=True):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            end_group(process)
            found.append(pickle.loads(result.read_bytes()) if result.exists() else None)
            if found[-1] is None:
                print(f"parallel: {given} came to nothing:\n{log.read_text()[-4000:]}", flush=True)
    finally:
        for process, *_ in started[len(found) :]:
            end_group(process)
    return found


def end_group(process: subprocess.Popen[bytes]) -> None:
    """With the engine's workers, which may be there after it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    """Of the forced log-probabilities, those of the prompts' last tokens left out: the mean and the largest."""
    found = [
        abs(step[token] - other_step[token])
        for steps, other_steps in zip(one["forced"], other["forced"], strict=True)
        for step, other_step in zip(steps[1:], other_steps[1:], strict=True)
        for token in step.keys() & other_step.keys()
    ]
    return float(np.mean(found)), float(np.max(found))


def compare(name: str, kv_heads: int, kind: str, runs: list[dict[str, Any] | None]) -> None:
    """Runs: a budget of everything on one rank and on two, parts on one and on two."""
    check(f"{name}: all engines ran", None not in runs)
    if None in runs:
        return
    exact, exact_on_two, sparse, sparse_on_two = runs
    equal, leads, drift = partings(*(Result(run["tokens"], run["logprobs"]) for run in (exact, exact_on_two)))
    mean, most = difference(exact, exact_on_two)
    check(
        f"{name}: a budget of everything gives one GPU's tokens, or parts at a near tie",
        all(lead < NEAR for lead in leads) and drift < NEAR and most < NEAR,
        f"{equal} of {len(exact['tokens'])} equal, leads {[round(lead, 3) for lead in leads]}, drift {drift:.3f}; forced: "
        f"{mean:.4f} in the mean, {most:.4f} at most",
    )
    between, apart, on_two = (
        difference(*pair) for pair in ((sparse, sparse_on_two), (exact, sparse), (exact, sparse_on_two))
    )
    one, both = sparse["ranks"][0], sparse_on_two["ranks"]
    tensor, pipeline = (RANKS[kind].get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
    # Of a pipeline, each rank has that of its own layers.
    coverages = [sum(rank["coverage"] for rank in both) / 2] if pipeline > 1 else [rank["coverage"] for rank in both]
    # With fewer query heads to a rank's KV head the choice is another, and finer: then only how good it is can be compared.
    alike = kv_heads < tensor or (
        between[0] < MOST_OF_THE_APPROXIMATION[kind] * apart[0] and max(coverages) < one["coverage"] + COVERAGE_NEAR
    )
    check(
        f"{name}: parts, forced tokens",
        alike and 0 < on_two[0] < 1.25 * apart[0] and min(coverages) > one["coverage"] - COVERAGE_NEAR,
        f"mean and largest difference of two ranks from one {between[0]:.4f} {between[1]:.4f}; from exact attention, one "
        f"rank {apart[0]:.4f} {apart[1]:.4f}, two {on_two[0]:.4f} {on_two[1]:.4f}; coverage {one['coverage']:.3f}, "
        f"two {[round(rank['coverage'], 3) for rank in both]}",
    )
    check(
        f"{name}: each rank has its device, its share of heads and layers, graphs and as much memory as it was given",
        [rank["device"] for rank in both] == [0, 1]
        and all(rank["kv_heads"] == max(1, kv_heads // tensor) and rank["replays"] > NEW_TOKENS for rank in both)
        and all(pipeline * rank["rows_sparse"] == one["rows_sparse"] > 0 < rank["rows_reported"] for rank in both)
        and all(0.98 * CACHE_BYTES < rank["summary_bytes"] + rank["cache_bytes"] <= CACHE_BYTES for rank in (one, *both))
        and all(len({rank[name] for rank in both}) == 1 for name in ("summary_bytes", "cache_bytes")),
    )
    for rank in (one, *both):
        print(f"parallel: | {json.dumps(rank)}", flush=True)


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", type=Path)
    arguments.add_argument("--seconds", type=float, default=300, help="in which all engines must be done")
    arguments.add_argument("--run", default="", help="the arguments of one run, as JSON; its result goes to --result")
    arguments.add_argument("--result", type=Path)
    options = arguments.parse_args()
    if options.run:
        found = pickle.dumps(run(**json.loads(options.run)))
        options.result.write_bytes(found)
        return 0
    gpus = torch.cuda.device_count()
    if gpus < 2:
        print(f"parallel: two GPUs are needed, and there are {gpus}", file=sys.stderr)
        return 2
    cases = []
    for name, (heads, kv_heads) in SHAPES.items():
        model = models.write(
            options.models, "tiny", torch_dtype="float16", num_attention_heads=heads, num_key_value_heads=kv_heads
        )
        models.write_weights(model)
        # Layers are divided alike, whatever heads they have: two shapes are enough.
        kinds = (ONE, TENSOR) if kv_heads == 1 else (ONE, TENSOR, PIPELINE)
        for kind in kinds:
            cases += [(name, kind, {"model": model, "ranks": RANKS[kind], "locks": locks}) for locks in LOCKS]
    with tempfile.TemporaryDirectory() as folder:
        runs = run_all([given for _, _, given in cases], Path(folder), options.seconds)
    found: dict[tuple[str, str], list[dict[str, Any] | None]] = {}
    for (name, kind, _), result in zip(cases, runs, strict=True):
        found.setdefault((name, kind), []).append(result)
    for (name, kind), on_two in found.items():
        if kind != ONE:
            (exact, sparse), (exact_on_two, sparse_on_two) = found[name, ONE], on_two
            compare(f"{name}, {kind}", SHAPES[name][1], kind, [exact, exact_on_two, sparse, sparse_on_two])
    print(f"parallel: {len(FAILED)} failed", flush=True)
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
