"""The command line tool, as people and scripts meet it."""

import functools
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

PROGRAM = Path(os.environ.get("LOCKS_BUILD_DIR", "build/release")) / "cli" / "locks"
HEAD_DIMS = [64, 80, 96, 128, 192, 256]


def locks(*args: str, expect: int = 0, **env: str) -> subprocess.CompletedProcess:
    run = subprocess.run([PROGRAM, *args], capture_output=True, text=True, env={**os.environ, **env}, timeout=300, check=False)
    assert run.returncode == expect, run.stdout + run.stderr
    return run


def test_every_command_has_help():
    overview = locks("--help").stdout
    for command in ["info", "bench", "verify"]:
        assert command in overview
        assert f"locks {command}" in locks(command, "--help").stdout


def test_version():
    assert locks("--version").stdout.startswith("locks 0.")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "expected info, bench, verify, eval, inspect"),
        (["score"], "expected info, bench, verify, eval, inspect, got 'score'"),
        (["--fast"], "expected info, bench, verify, eval, inspect, got '--fast'"),
        (["info", "--jsn"], "--jsn"),
        (["info", "more"], "more"),
        (["bench", "--threads", "0"], "expected a whole number from 1 to 1024, got '0'"),
        (["bench", "--threads", "two"], "expected a whole number from 1 to 1024, got 'two'"),
        (["bench", "--target", "sse2"], "expected reference, scalar"),
        (["bench", "--head-dim", "100"], "{64,80,96,128,192,256}"),
        (["bench", "--format", "float"], "paper,graded8,graded12,graded4"),
        (["bench", "--filter", "no such thing"], "no measurement has 'no such thing'"),
        (["bench", "--seconds", "long"], "expected seconds"),
        (["verify", "--seconds", "-1"], "expected seconds"),
        (["verify", "--seed", "x"], "expected a whole number"),
        (["verify", "--case", "-3"], "expected a whole number"),
        (["verify", "--device", "tpu"], "tpu not in {cpu,cuda}"),
    ],
)
def test_wrong_arguments_get_code_2_and_one_line(args, expected):
    run = locks(*args, expect=2)
    assert run.stdout == ""
    assert expected in run.stderr
    assert run.stderr.count("\n") == 1 and run.stderr.endswith("\n")
    assert "--help" in run.stderr or "--list" in run.stderr


def test_info_as_text_names_targets_and_formats():
    text = locks("info").stdout
    for word in ["avx2", "scalar", "graded8", "paper", "598", "7.3 %", "1000", "512 tokens"]:
        assert word in text


def test_info_as_json():
    info = json.loads(locks("info", "--json").stdout)
    assert info["head_dims"] == HEAD_DIMS
    assert info["cache_types"] == ["f32", "f16", "bf16", "q8_0"]
    assert info["active_target"] == info["targets"][-1]
    formats = {entry["name"]: entry["records"] for entry in info["formats"]}
    assert set(formats) == {"paper", "graded8", "graded12", "graded4"}
    records = {record["head_dim"]: record for record in formats["graded8"]}
    assert records[128]["record_bytes"] == 598
    assert records[64]["share_of_f16_page"] <= 0.085
    assert records[64]["share_of_f16_page_with_values"] <= 0.135


def test_a_target_can_be_forced():
    for target in json.loads(locks("info", "--json").stdout)["targets"]:
        assert json.loads(locks("info", "--json", LOCKS_CPU_TARGET=target).stdout)["active_target"] == target


def test_an_unknown_forced_target_is_refused():
    run = locks("info", expect=1, LOCKS_CPU_TARGET="sse2")
    assert "sse2" in run.stderr and "avx2" in run.stderr and run.stderr.count("\n") == 1


def test_bench_lists_its_measurements():
    names = locks("bench", "--list").stdout.split()
    for name in ["cpu.score.graded8.d128", "cpu.attend.d64", "cpu.dense.d128", "cpu.dense.q8_0.d64", "cpu.summarize.paper.d64",
                 "cpu.prefill.d128", "cpu.decode.32768.d128"]:
        assert name in names
    assert len(names) == len(set(names))


def test_bench_writes_json(tmp_path):
    path = tmp_path / "bench.json"
    locks("bench", "--quick", "--filter", "cpu.decode.8192.d64", "--json", str(path))
    entries = {entry["name"]: entry for entry in json.loads(path.read_text())}
    step = entries["cpu.decode.8192.d64"]
    for key in ["value", "unit", "bytes", "bandwidth_share", "speedup"]:
        assert key in step
    assert step["unit"] == "us" and step["value"] > 0 and step["bytes"] > 0
    assert entries["cpu.read_bandwidth"]["unit"] == "GB/s"


def test_bench_knows_at_once_that_it_cannot_write(tmp_path):
    start = time.monotonic()
    run = locks("bench", "--json", str(tmp_path / "missing" / "bench.json"), expect=1)
    assert "cannot write" in run.stderr and run.stderr.count("\n") == 1
    assert time.monotonic() - start < 20


def test_verify_repeats_a_case():
    first = locks("verify", "--seed", "11", "--case", "4").stdout
    assert first.splitlines()[:2] == locks("verify", "--seed", "11", "--case", "4").stdout.splitlines()[:2]
    assert "case 4: d " in first and "1 cases, no fault" in first


def test_verify_on_a_gpu_or_why_not():
    run = subprocess.run(
        [PROGRAM, "verify", "--device", "cuda", "--seed", "11", "--seconds", "1"], capture_output=True, text=True, check=False
    )
    if run.returncode == 0:
        assert re.search(r"\d+ cases, \d+ of them such as the GPU takes, no fault", run.stdout)
    else:
        assert run.returncode == 1
        assert run.stdout == ""
        assert run.stderr.startswith("locks verify: no GPU to check: ")


def test_verify_stops_cleanly_when_interrupted():
    # A shell's background jobs ignore the signal, and a child inherits that.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    run = subprocess.Popen([PROGRAM, "verify", "--seed", "3"], stdout=subprocess.PIPE, text=True, preexec_fn=heed)
    assert run.stdout.readline().startswith("seed 3:")
    run.send_signal(signal.SIGINT)
    rest, _ = run.communicate(timeout=120)
    assert run.returncode == 0 and "no fault" in rest
