"""Time to the first token: whole prompts are computed, with summaries made as pages fill. A model of random weights, one
backend a process; --table puts results side by side."""

import json
import statistics
import sys
import time
from pathlib import Path

import speed


def measure(options, wait) -> list[dict]:
    from vllm import SamplingParams

    contexts = [int(context) for context in options.contexts.split(",")]
    llm = speed.start_engine(options, {1}, max(contexts) + 16)
    engine = llm.llm_engine
    sampling = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, detokenize=False)
    results = []
    wait()
    for context in contexts:
        times = []
        for repeat in range(1 + options.repeats):  # the first one warms up
            prompt = llm._preprocess_cmpl_one(speed.prompt_of(repeat, context))
            before = time.perf_counter()
            engine.add_request(f"{context}-{repeat}", prompt, sampling)
            while engine.has_unfinished_requests():
                engine.step()
            times.append(1e3 * (time.perf_counter() - before))
        results.append(
            {"model": options.model, "backend": options.backend, "context": context, "ms": statistics.median(times[1:])}
        )
        print("prompts:", json.dumps(results[-1]), flush=True)
    return results


def print_table(folder: Path) -> None:
    rows: dict[tuple[str, int], dict[str, float]] = {}
    for path in sorted(folder.glob("prompts-*.json")):
        for result in json.loads(path.read_text()):
            rows.setdefault((result["model"], result["context"]), {})[result["backend"]] = result["ms"]
    print(f"{'model':<8}{'prompt':>8}{'FlashAttention, ms':>20}{'LOCKS, ms':>12}")
    for (model, context), ms in rows.items():
        shown = [f"{ms[backend]:.0f}" if backend in ms else "-" for backend in ("stock", "locks")]
        print(f"{model:<8}{context:>8}{shown[0]:>20}{shown[1]:>12}")


def main() -> int:
    arguments = speed.common_arguments()
    arguments.add_argument("--contexts", default="16384", help="lengths of prompts, with commas between")
    arguments.add_argument("--repeats", type=int, default=3, help="of each, of which the median counts")
    options = arguments.parse_args()
    if options.table:
        print_table(options.out)
        return 0
    with speed.turns(options.turns) as wait:
        results = measure(options, wait)
    (options.out / f"prompts-{options.model}-{options.backend}.json").write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
