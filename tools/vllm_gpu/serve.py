"""`vllm serve` with LOCKS on a tiny model: requests over HTTP, what the log says of it, and that nothing is left at its end.
With --kill, the end is that a worker process is killed."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import models
from checks import FAILED, check
import numpy as np

# vLLM kills the engine's process at its end: what is said then is not seen.
LOCKS = {"exact_head_tokens": 0, "log_interval_seconds": 0.05}
ACTIVE = "LOCKS is active: 1024 tokens of each context of 1025 or more are attended, whole pages, "  # the default on CUDA
PROMPT_TOKENS, NEW_TOKENS = 3000, 32
START_SECONDS, END_SECONDS = 300, 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port: int, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def processes_of(session: int) -> dict[int, str]:
    """Of the server's session: command lines by process, those that have ended left out."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, owner = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(owner) == session and state != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        except OSError:  # ended meanwhile
            continue
    return found


def wait_until_ready(server: subprocess.Popen, port: int) -> bool:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            ask(port, "/health")
            return True
        except OSError:
            time.sleep(0.3)
    return False


def complete(port: int, model: str) -> list[int]:
    prompt = np.random.default_rng(3).integers(5, 1000, PROMPT_TOKENS).tolist()
    body = {"model": model, "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    answer = ask(port, "/v1/completions", {**body, "return_token_ids": True})
    return answer["choices"][0]["token_ids"]


def kill_a_worker(session: int) -> None:
    workers = sorted(process for process, line in processes_of(session).items() if "VLLM::Worker" in line)
    check("there are worker processes", bool(workers))
    if workers:
        os.kill(workers[-1], signal.SIGKILL)


def start(model: str, log: Path, port: int, *more: str) -> subprocess.Popen:
    """`vllm serve`, in a session of its own, all of whose processes write to the log."""
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, "--port", str(port)]
    command += ["--skip-tokenizer-init", "--max-model-len", "8192", "--max-num-seqs", "8", *more]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("w") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True)


def check_end(name: str, server: subprocess.Popen, seconds: float) -> None:
    """Waits until the server ends."""
    begin = time.monotonic()
    try:
        code: int | None = server.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    took = time.monotonic() - begin
    time.sleep(2)
    left = processes_of(server.pid)
    check(name, code is not None and not left, f"exit status {code} after {took:.1f} s, left {list(left.values())}")


def end(server: subprocess.Popen) -> None:
    for process in processes_of(server.pid):
        os.kill(process, signal.SIGKILL)


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True, help="folder of the server's log")
    arguments.add_argument("--ranks", type=int, default=1, help="of tensor parallelism")
    arguments.add_argument("--kill", action="store_true")
    arguments.add_argument("more", nargs="*", help="arguments of vllm serve, after --")
    options = arguments.parse_args()
    model = models.write(options.models, "tiny", torch_dtype="float16")
    models.write_weights(model)
    port = free_port()
    more = ["--no-enable-prefix-caching"]  # the rest of a known prompt rounds differently
    more += ["--kv-cache-memory-bytes", str(512 << 20), "--gpu-memory-utilization", "0.5"]
    more += ["--attention-backend", "CUSTOM", "--additional-config", json.dumps({"locks": LOCKS})]
    more += ["--tensor-parallel-size", str(options.ranks), *options.more]
    log = options.out / f"serve-{options.ranks}{'-killed' if options.kill else ''}.log"
    begin = time.monotonic()
    server = start(model, log, port, *more)
    try:
        ready = wait_until_ready(server, port)
        check("the server starts", ready, f"{time.monotonic() - begin:.0f} s")
        if ready:
            answers = [complete(port, model) for _ in range(2)]
            alike = len(answers[0]) == NEW_TOKENS and answers[0] == answers[1]
            check("a request is answered, twice alike", alike, f"{len(answers[0])} tokens")
            if options.kill:
                kill_a_worker(server.pid)
            else:
                server.send_signal(signal.SIGTERM)
        check_end("the server ends and leaves nothing", server, END_SECONDS)
    finally:
        end(server)
    text = log.read_text()
    said = text.count(ACTIVE)
    check("each rank says that LOCKS is active", said == options.ranks, f"{said} of {options.ranks}")
    said = text.count("sparse rows")
    check("... and what it did", said >= options.ranks, f"{said} times")
    if options.kill:
        check("the log has the reason", "died unexpectedly" in text)
    lines = [line for line in text.splitlines() if "LOCKS" in line or "died" in line]
    print("".join(f"serve: | {line}\n" for line in [*lines[:2], *lines[-3:]]), end="")
    if FAILED:
        print(text[-6000:])
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
