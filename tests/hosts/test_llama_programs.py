"""llama.cpp's own programs, unmodified, with nothing but an environment variable. They are not built here:
LOCKS_TEST_LLAMA_BIN names a folder with llama-server, llama-cli and llama-bench of a dynamically linked build.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

import texts  # noqa: E402
from llama_host import real_model_path  # noqa: E402

BUILD = Path(os.environ.get("LOCKS_BUILD_DIR") or ROOT / "build" / "release")
PLUGINS = {"GGML_BACKEND_PATH": BUILD / "libggml-locks.so", "LD_PRELOAD": BUILD / "liblocks-preload.so"}
PROGRAMS = os.environ.get("LOCKS_TEST_LLAMA_BIN")
LAYERS = 30  # of the real model
CHARACTERS = 6000  # more than 1,100 tokens

pytestmark = [
    pytest.mark.skipif(not PROGRAMS, reason="LOCKS_TEST_LLAMA_BIN names no folder with llama.cpp's programs"),
    pytest.mark.skipif(not all(path.exists() for path in PLUGINS.values()), reason="the plug-in was not built"),
    pytest.mark.parametrize("variable", PLUGINS),
]


def skip_where_the_variable_is_not_read(variable, program):
    """llama-server and llama-cli look for backends only where none is linked in."""
    linked = subprocess.run(["ldd", Path(PROGRAMS) / program], capture_output=True, text=True, check=True).stdout
    if variable == "GGML_BACKEND_PATH" and "libggml-cpu" in linked:
        pytest.skip(f"this {program} has its backends linked in and does not read {variable}")


def start(variable, statistics, program, *arguments, **options):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCKS_")}
    environment |= {variable: str(PLUGINS[variable]), "LOCKS_STATS": str(statistics)}
    command = [Path(PROGRAMS) / program, "-m", real_model_path(), "-t", "2", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, text=True, **options)


def run(variable, statistics, program, *arguments):
    """What the program printed, and the plug-in's statistics of it."""
    process = start(variable, statistics, program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    assert err.count("active in ggml") == 1, err[-3000:]
    return out, json.loads(statistics.read_text())


def assert_sparse(counted):
    assert counted["layers"] == LAYERS
    assert counted["sparse_requests"] > 0 and counted["sparse_requests"] % LAYERS == 0
    assert counted["calls_declined"] == 0 and counted["exact_calls"] == 0
    assert counted["attended_tokens"] < counted["context_tokens"] / 2


def test_llama_bench(variable, tmp_path):
    arguments = ("-p", 0, "-n", 16, "-d", 2048, "-r", 2, "-fa", 1, "-o", "json")
    out, counted = run(variable, tmp_path / "statistics.json", "llama-bench", *arguments)
    assert json.loads(out)[0]["n_depth"] == 2048
    assert_sparse(counted)
    assert counted["sparse_requests"] == 2 * 16 * LAYERS


def test_llama_cli(variable, tmp_path):
    skip_where_the_variable_is_not_read(variable, "llama-cli")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(texts.prose()[:CHARACTERS] + "\nWhat is this text about?")
    arguments = ("-f", prompt, "-n", 16, "-c", 4096, "--single-turn", "--temp", 0)
    _, counted = run(variable, tmp_path / "statistics.json", "llama-cli", *arguments)
    assert_sparse(counted)


def post(port, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def is_ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_llama_server_answers_two_at_once(variable, tmp_path):
    skip_where_the_variable_is_not_read(variable, "llama-server")
    statistics = tmp_path / "statistics.json"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    with open(log, "w") as file:
        arguments = ("--host", "127.0.0.1", "--port", port, "-c", 8192, "-np", 2)
        server = start(variable, statistics, "llama-server", *arguments, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 120
        while not is_ready(port):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
        answers = [None, None]
        prompts = [texts.prose()[:CHARACTERS], texts.code()[:CHARACTERS]]

        def complete(slot):
            body = {"prompt": prompts[slot], "n_predict": 24, "temperature": 0, "id_slot": slot, "ignore_eos": True}
            answers[slot] = post(port, body)

        both = [threading.Thread(target=complete, args=(slot,)) for slot in (0, 1)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert all(answer["tokens_predicted"] == 24 and answer["tokens_evaluated"] > 1100 for answer in answers)
    finally:
        server.send_signal(signal.SIGINT)
        status = server.wait(timeout=60)
    assert status == 0, log.read_text()[-3000:]
    assert log.read_text().count("active in ggml") == 1
    counted = json.loads(statistics.read_text())
    assert_sparse(counted)
    assert counted["decode_steps"] < counted["requests"] / LAYERS  # some steps held a token of each
