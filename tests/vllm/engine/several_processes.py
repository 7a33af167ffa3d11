"""vLLM as it is served: an engine process and worker processes, which find the plug-in by its entry point.

several_processes.py CHECKPOINT RESULTS RANKS
"""

import json
import sys
from pathlib import Path

import runs


def main() -> None:
    checkpoint, results = map(Path, sys.argv[1:3])
    ranks = int(sys.argv[3])
    if ranks == 1:
        try:
            runs.run(checkpoint, {"budget": 1})
        except Exception as error:
            print(f"the start ended with {type(error).__name__}", flush=True)
    locks = {"budget_tokens": 320, "min_context_tokens": 256, "debug_check": True}
    results.write_text(json.dumps(runs.run(checkpoint, locks, tensor_parallel_size=ranks).tokens))


if __name__ == "__main__":  # vLLM's processes import this file again
    main()
