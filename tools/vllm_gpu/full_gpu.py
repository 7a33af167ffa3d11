"""One of two GPUs has too little memory left for what the other has room for: `vllm serve` ends with the reason, with LOCKS
as without, and leaves nothing."""

import argparse
import sys
from pathlib import Path

import models
import serve
import torch
from checks import FAILED, check

FREE_BYTES, CACHE_BYTES = 6 << 30, 8 << 30
END_SECONDS = 240


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True, help="folder of the servers' logs")
    options = arguments.parse_args()
    gpus = torch.cuda.device_count()
    if gpus < 2:
        print(f"full_gpu: two GPUs are needed, and there are {gpus}", file=sys.stderr)
        return 2
    model = models.write(options.models, "tiny", torch_dtype="float16")
    models.write_weights(model)
    free, _ = torch.cuda.mem_get_info(1)
    rest = torch.empty(max(0, free - FREE_BYTES), dtype=torch.uint8, device="cuda:1")
    # Less than is free, or vLLM ends before it allocates.
    more = ["--gpu-memory-utilization", "0.01", "--kv-cache-memory-bytes", str(CACHE_BYTES), "--tensor-parallel-size", "2"]
    servers = {}
    try:
        for name, backend in (("stock", "FLASH_ATTN"), ("LOCKS", "CUSTOM")):
            log = options.out / f"full_gpu-{name}.log"
            servers[name] = (serve.start(model, log, serve.free_port(), *more, "--attention-backend", backend), log)
        for name, (server, log) in servers.items():
            serve.check_end(f"{name}: the server ends and leaves nothing", server, END_SECONDS)
            lines = [line for line in log.read_text().splitlines() if "out of memory" in line]
            check(f"{name}: ... as failed", server.returncode not in (0, None))
            check(f"{name}: the log has the reason, from the rank whose GPU is full", any("GPU 1" in line for line in lines))
            print("".join(f"full_gpu: | {line[:300]}\n" for line in lines[:1]), end="", flush=True)
    finally:
        for server, _ in servers.values():
            serve.end(server)
    del rest
    print(f"full_gpu: {len(FAILED)} failed", flush=True)
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
