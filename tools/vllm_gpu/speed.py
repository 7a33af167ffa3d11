"""Time per output token of a model of random weights at long contexts, in vLLM's engine with full CUDA graphs. Prompts are
not computed: random keys and values stand for them. One backend a process; --table puts results side by side."""

import argparse
import contextlib
import fcntl
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import models
import stages

NEW_TOKENS = 64
FIRST_STEPS, STEPS = 16, 30  # of those, left out and measured
ROW = ("model", "cache", "ranks", "batch", "context")
FULL_GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}


def start_engine(options: argparse.Namespace, batches: set[int], longest: int, **more: Any) -> Any:
    """An engine for such numbers of requests and contexts up to `longest`, with the options' model and backend."""
    from vllm import LLM

    if options.cache_gib:
        more |= {"kv_cache_memory_bytes": int(options.cache_gib * 2**30)}
    locks = options.backend == "locks"
    llm = LLM(
        model=models.write(options.models, options.model),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        kv_cache_dtype=options.cache,
        seed=0,
        max_model_len=longest,
        max_num_seqs=max(batches),
        gpu_memory_utilization=options.memory,
        enable_prefix_caching=False,
        disable_log_stats=True,
        tensor_parallel_size=options.ranks,
        attention_config={"backend": "CUSTOM" if locks else "FLASH_ATTN"},
        additional_config={"locks": json.loads(options.settings)} if locks else {},
        compilation_config={**FULL_GRAPHS, "cudagraph_capture_sizes": sorted(batches)},
        **more,
    )
    llm.apply_model(models.draw_weights)  # with vLLM's own every query is almost zero, and attention flat
    return llm


def prompt_of(request: int, tokens: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [((7 + request) * i + 3) % 1000 + 5 for i in range(tokens)]}


@contextlib.contextmanager
def turns(path: Path | None) -> Iterator[Callable[[], None]]:
    """Engines that are started at once start together, and then measure one after the other: what is yielded waits for that.
    Without a path there are no others."""
    if path is None:
        yield lambda: None
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield lambda: fcntl.flock(file, fcntl.LOCK_EX)


def decode(llm: Any, name: str, row: str, profiled: bool = False) -> tuple[list[float], list[dict[str, float]]]:
    """Of a row's requests, milliseconds: those of the steps that count and, where it is profiled, each rank's by stage."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = llm.llm_engine
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    sampling.output_kind = RequestOutputKind.FINAL_ONLY
    for request, tokens in enumerate(contexts_of(row)):
        engine.add_request(f"{name}-{request}", llm._preprocess_cmpl_one(prompt_of(request, tokens)), sampling)
    steps: list[float] = []
    ranks: list[dict[str, float]] = []
    while engine.has_unfinished_requests():
        if profiled and len(steps) == FIRST_STEPS:
            llm.collective_rpc(stages.start)
        if profiled and len(steps) == FIRST_STEPS + stages.STEPS:
            ranks = llm.collective_rpc(stages.stop, args=(stages.STEPS,))
        before = time.perf_counter()
        engine.step()
        steps.append(1e3 * (time.perf_counter() - before))
    return steps[FIRST_STEPS : FIRST_STEPS + STEPS], ranks


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    import filling

    locks = options.backend == "locks"
    if locks:
        filling.allow_for_locks()
    rows = options.rows.split(",")
    results = []
    with turns(options.turns) as wait_for_turn:
        start = time.perf_counter()
        llm = start_engine(
            options,
            {len(contexts_of(row)) for row in rows},
            max(max(contexts_of(row)) for row in rows) + NEW_TOKENS + 16,
            kv_transfer_config={
                "kv_connector": "FillingConnector",
                "kv_connector_module_path": "filling",
                "kv_role": "kv_both",
            },
        )
        blocks = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
        seconds = time.perf_counter() - start
        print(f"speed: {options.model} {options.backend}: started in {seconds:.0f} s, {blocks} blocks", flush=True)
        wait_for_turn()
        for number, row in enumerate(rows):
            steps = sorted(decode(llm, str(number), row)[0])
            batch, _, context = row.partition("x")
            results.append(
                {
                    "model": options.model,
                    "backend": options.backend,
                    "settings": json.loads(options.settings) if locks else {},
                    "cache": options.cache,
                    "ranks": options.ranks,
                    "batch": int(batch),
                    "context": context,
                    "ms": statistics.median(steps),
                    "p10": steps[len(steps) // 10],
                    "p90": steps[len(steps) * 9 // 10],
                    "blocks": blocks,
                }
            )
            print("speed:", json.dumps(results[-1]), flush=True)
        # In the end: the profiler may stay in the way of what comes after it.
        for number, row in enumerate(options.stages.split(",") if options.stages else []):
            for rank, found in enumerate(decode(llm, f"stages-{number}", row, profiled=True)[1]):
                shown = ", ".join(f"{stage} {ms:.3f}" for stage, ms in found.items() if ms)
                print(f"speed: {options.model} {options.backend} {row}, rank {rank}, ms a step: {shown}", flush=True)
        if locks:
            for figures in llm.collective_rpc(figures_of_rank):
                names = ("rows_sparse", "rows_reported", "attended_share", "coverage")
                print("speed:", {name: figures[name] for name in names})
    return results


def figures_of_rank(worker: Any) -> dict[str, Any]:
    from locks_cpp.vllm import stats

    return stats(worker.vllm_config)


def contexts_of(row: str) -> list[int]:
    """Tokens of each request: "4x131072" are four alike, "64x1024-32768" goes evenly from the first to the last."""
    batch, _, context = row.partition("x")
    first, _, last = context.partition("-")
    requests, least, most = int(batch), int(first), int(last or first)
    return [least + (most - least) * request // max(1, requests - 1) for request in range(requests)]


def print_table(folder: Path) -> None:
    rows: dict[tuple[str, str, int, int, str], dict[str, float]] = {}
    for path in sorted(folder.glob("speed-*.json")):
        try:
            results = json.loads(path.read_text())
            found = [(tuple(result[name] for name in ROW), result["backend"], result["ms"]) for result in results]
        except (KeyError, TypeError, ValueError) as error:
            print(f"speed: {path} is left out, as of another version: {type(error).__name__} {error}", file=sys.stderr)
            continue
        for row, backend, ms in found:
            rows.setdefault(row, {})[backend] = ms
    print(
        f"{'model':<8}{'cache':<6}{'GPUs':>6}{'batch':>6}{'context':>16}{'FlashAttention, ms':>20}{'LOCKS, ms':>12}{'':>8}"
    )
    for (model, cache, ranks, batch, context), ms in rows.items():
        stock, locks = ms.get("stock"), ms.get("locks")
        ratio = f"{stock / locks:.2f} x" if stock and locks else ""
        shown = [f"{value:.2f}" if value else "-" for value in (stock, locks)]
        print(f"{model:<8}{cache:<6}{ranks:>6}{batch:>6}{context:>16}{shown[0]:>20}{shown[1]:>12}{ratio:>8}")


def common_arguments() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=Path, required=True, help="folder of the results")
    arguments.add_argument("--table", action="store_true", help="print what is there, and no more")
    arguments.add_argument("--models", type=Path)
    arguments.add_argument("--model", choices=("glm", "llama", "tiny"))
    arguments.add_argument("--backend", choices=("stock", "locks"))
    arguments.add_argument("--cache", default="auto", help="vLLM's --kv-cache-dtype")
    arguments.add_argument("--ranks", type=int, default=1, help="GPUs, of tensor parallelism")
    arguments.add_argument("--settings", default="{}", help="of LOCKS, as JSON; {} are whole pages, see docs/VLLM.md")
    arguments.add_argument("--memory", type=float, default=0.93, help="vLLM's --gpu-memory-utilization")
    arguments.add_argument("--cache-gib", type=float, default=0, help="of each GPU; 0: what vLLM finds within --memory")
    arguments.add_argument("--turns", type=Path, help="a file: with the same one, engines that run at once measure in turn")
    return arguments


def main() -> int:
    arguments = common_arguments()
    arguments.add_argument(
        "--rows", default="1x131072", help="requests x tokens, with commas between; 64x1024-32768: spread so"
    )
    arguments.add_argument("--stages", default="", help="rows of which the stages' times are shown, in the end")
    options = arguments.parse_args()
    if options.table:
        print_table(options.out)
        return 0
    results = measure(options)
    rows = options.rows.replace(",", "+")
    name = f"speed-{options.model}-{options.backend}-{options.cache}-{options.ranks}-{rows}.json"
    (options.out / name).write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
