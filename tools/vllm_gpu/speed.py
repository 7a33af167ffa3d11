"""Time per output token of a model of random weights at long contexts, in vLLM's engine with full CUDA graphs. Prompts are
not computed: random keys and values stand for them. One backend a process; --table puts results side by side."""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import models

NEW_TOKENS = 64
FIRST_STEPS = 16  # of those, left out
ROW = ("model", "cache", "ranks", "batch", "context")
FULL_GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}


def start_engine(options: argparse.Namespace, longest: int, **more: Any) -> Any:
    """An engine for contexts up to `longest`, with the options' model and backend."""
    from vllm import LLM

    locks = options.backend == "locks"
    llm = LLM(
        model=models.write(options.models, options.model),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        kv_cache_dtype=options.cache,
        seed=0,
        max_model_len=longest,
        max_num_seqs=options.batch,
        gpu_memory_utilization=options.memory,
        enable_prefix_caching=False,
        disable_log_stats=True,
        tensor_parallel_size=options.ranks,
        attention_config={"backend": "CUSTOM" if locks else "FLASH_ATTN"},
        additional_config={"locks": json.loads(options.settings)} if locks else {},
        compilation_config={**FULL_GRAPHS, "cudagraph_capture_sizes": [options.batch]},
        **more,
    )
    llm.apply_model(models.draw_weights)  # with vLLM's own every query is almost zero, and attention flat
    return llm


def prompt_of(request: int, tokens: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [((7 + request) * i + 3) % 1000 + 5 for i in range(tokens)]}


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    import filling
    import torch
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    locks = options.backend == "locks"
    if locks:
        filling.allow_for_locks()
    contexts = [spread(context, options.batch) for context in options.contexts.split(",")]
    start = time.perf_counter()
    llm = start_engine(
        options,
        max(map(max, contexts)) + NEW_TOKENS + 16,
        kv_transfer_config={
            "kv_connector": "FillingConnector",
            "kv_connector_module_path": "filling",
            "kv_role": "kv_both",
        },
    )
    engine = llm.llm_engine
    blocks = engine.vllm_config.cache_config.num_gpu_blocks
    print(
        f"speed: {options.model} {options.backend}: started in {time.perf_counter() - start:.0f} s, {blocks} blocks",
        flush=True,
    )
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    sampling.output_kind = RequestOutputKind.FINAL_ONLY
    results = []
    for name, context in zip(options.contexts.split(","), contexts, strict=True):
        for request, tokens in enumerate(context):
            prompt = llm._preprocess_cmpl_one(prompt_of(request, tokens))
            engine.add_request(f"{name}-{request}", prompt, sampling)
        steps = []
        profiler = None
        while engine.has_unfinished_requests():
            if name == options.profile and len(steps) == FIRST_STEPS + 30:
                profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
                profiler.start()
            before = time.perf_counter()
            engine.step()
            steps.append(time.perf_counter() - before)
            if profiler is not None and len(steps) == FIRST_STEPS + 35:
                profiler.stop()
                events = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
                print(f"speed: profile: {sum(event.device_time_total for event in events) / 5e3:.3f} ms a step in kernels")
                for event in events[:36]:
                    per_step = event.device_time_total / 5e3
                    print(f"speed: profile: {per_step:.3f} ms a step, {event.count / 5:.0f} calls: {event.key[:110]}")
                profiler = None
        measured = sorted(1e3 * step for step in steps[FIRST_STEPS : FIRST_STEPS + 30])
        results.append(
            {
                "model": options.model,
                "backend": options.backend,
                "cache": options.cache,
                "ranks": options.ranks,
                "batch": options.batch,
                "context": name,
                "ms": statistics.median(measured),
                "p10": measured[len(measured) // 10],
                "p90": measured[len(measured) * 9 // 10],
                "blocks": blocks,
            }
        )
        print("speed:", json.dumps(results[-1]), flush=True)
    if locks:
        for figures in llm.collective_rpc(figures_of_rank):
            print("speed:", {name: figures[name] for name in ("rows_sparse", "rows_reported", "attended_share", "coverage")})
    return results


def figures_of_rank(worker: Any) -> dict[str, Any]:
    from locks_cpp.vllm import stats

    return stats(worker.vllm_config)


def spread(context: str, requests: int) -> list[int]:
    """Tokens of each request: all the same ("131072"), or evenly from the first to the last ("1024-32768")."""
    first, _, last = context.partition("-")
    least, most = int(first), int(last or first)
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
    print(f"{'model':<8}{'cache':<6}{'GPUs':>6}{'batch':>6}{'context':>16}{'FlashAttention, ms':>20}{'LOCKS, ms':>12}{'':>8}")
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
    arguments.add_argument("--batch", type=int, default=1)
    arguments.add_argument("--settings", default="{}", help="of LOCKS, as JSON")
    arguments.add_argument("--memory", type=float, default=0.93)
    return arguments


def main() -> int:
    arguments = common_arguments()
    arguments.add_argument("--contexts", default="131072", help="with commas between; 1024-32768: the batch's are spread so")
    arguments.add_argument("--profile", default="", help="the one of --contexts at which kernels are listed")
    options = arguments.parse_args()
    if options.table:
        print_table(options.out)
        return 0
    results = measure(options)
    contexts = options.contexts.replace(",", "+")
    name = f"speed-{options.model}-{options.backend}-{options.cache}-{options.ranks}-{options.batch}-{contexts}.json"
    (options.out / name).write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
