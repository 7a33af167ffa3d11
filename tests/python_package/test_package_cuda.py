"""locks_cpp.cuda where there is no GPU: what it says, and what it refuses before anything reaches CUDA. With one,
tools/vllm_gpu.sh."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from built_package import STAGED, locks_cpp
from dlpack_object import CUDA, FLOAT, DlpackObject

from locks_cpp import cuda

BUILT = any((STAGED / "locks_cpp").glob("_cuda*.so"))
needs_module = pytest.mark.skipif(not BUILT, reason="this build has no CUDA: CMake says why")

INT, UINT, E4M3 = 0, 1, 10
SHAPE = {"format": "graded8", "head_dim": 64, "kv_heads": 2, "values": True}
GEOMETRY = {"query_heads": 4, "kv_heads": 2, "head_dim": 64, "softmax_scale": 0.125}


def on_device(shape, dtype, code):
    """Memory that only says that it lies on a device: nothing may read it. Aligned as a device's is."""
    count = int(np.prod(shape))
    memory = np.zeros(count * np.dtype(dtype).itemsize + 64, np.uint8)
    first = -memory.ctypes.data % 64
    array = memory[first : first + count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
    return DlpackObject(array, code=code, device=CUDA)


def test_it_says_why_it_cannot_be_called(tmp_path):
    """Without the module, as without a GPU, importing is no error."""
    shutil.copytree(
        Path(locks_cpp.__file__).parent, tmp_path / "locks_cpp", ignore=shutil.ignore_patterns("_cuda*.so", "vllm")
    )
    script = """
from locks_cpp import Config, cuda
print(cuda.why_unavailable())
for call in (lambda: cuda.summarize, lambda: cuda.current_device(), lambda: cuda.DecodePlan(Config(), **{})):
    try:
        call()
    except (ImportError, TypeError) as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stderr == "" and run.stdout.splitlines()[:3] == ["this build of locks_cpp has no CUDA"] * 3


@needs_module
def test_the_module_is_typed():
    stub = (STAGED / "locks_cpp" / "_cuda.pyi").read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:def|class) (\w+)", stub, re.MULTILINE))
    assert named == {name for name in dir(cuda._cuda) if not name.startswith("__")}


@needs_module
def test_without_a_gpu_it_says_so():
    why = cuda.why_unavailable()
    if not why:
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError) as caught:
        cuda.current_device()
    assert str(caught.value) == why


@needs_module
@pytest.mark.parametrize("format", locks_cpp.formats())
def test_records_are_padded_to_what_the_gpu_reads(format):
    for head_dim in (64, 80, 96, 128, 192, 256):
        padded, plain = (library.page_bytes(format, head_dim, 1, False) for library in (cuda, locks_cpp))
        assert padded % 16 == 0 and 0 <= padded - plain < 16


class Step:
    """The arguments of a call of DecodePlan.run without requests, which is checked and then has nothing to do."""

    def __init__(self):
        self.plan = cuda.DecodePlan(locks_cpp.Config(), **GEOMETRY, max_requests=4, max_context_tokens=2000)
        self.summaries = cuda.Summaries(on_device((8, cuda.page_bytes(**SHAPE)), np.uint8, UINT), **SHAPE)
        self.arguments = {
            "queries": on_device((0, 4, 64), np.float32, FLOAT),
            "keys": on_device((8, 16, 2, 64), np.float16, FLOAT),
            "values": on_device((8, 16, 2, 64), np.float16, FLOAT),
            "summaries": self.summaries,
            "block_tables": on_device((0, 125), np.int32, INT),
            "context_tokens": on_device((0,), np.int32, INT),
            "out": on_device((0, 4, 64), np.float32, FLOAT),
            "workspace": on_device((self.plan.workspace_bytes,), np.uint8, UINT),
            "stream": 0,
        }

    def run(self, **changed):
        self.plan.run(**{**self.arguments, **changed})


@needs_module
def test_no_requests_are_no_work():
    Step().run()


def e4m3(code, **scales):
    """Keys and values of fp8, and their scales."""
    caches = {name: on_device((8, 16, 2, 64), np.uint8, code) for name in ("keys", "values")}
    return {**caches, **{name: on_device((1,), np.float32, FLOAT) for name in scales}}


@needs_module
@pytest.mark.parametrize("code", [UINT, E4M3])
def test_fp8_is_taken_as_such_and_as_bytes(code):
    Step().run(**e4m3(code))
    Step().run(**e4m3(code, key_scale=1, value_scale=1))
    none = on_device((0,), np.int32, INT)
    cuda.summarize(*e4m3(code).values(), none, Step().summaries, stream=0)
    cuda.summarize(*e4m3(code).values(), none, Step().summaries, key_scale=on_device((1,), np.float32, FLOAT), stream=0)


@needs_module
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"key_scale": on_device((1,), np.float32, FLOAT)},
            "key_scale: expected None where nothing is float8_e4m3fn or uint8",
        ),
        ({**e4m3(UINT), "value_scale": on_device((2,), np.float32, FLOAT)}, r"value_scale: expected float32 \[1\]"),
        ({**e4m3(UINT), "value_scale": 0.5}, r"value_scale: expected float32 \[1\]"),
        ({"keys": on_device((8, 16, 2, 64), np.int8, INT)}, "keys: expected float32 .* or float8_e4m3fn or uint8"),
        (
            {"queries": np.zeros((0, 4, 64), np.float32)},
            r"queries: expected float32 .* in a CUDA device's memory, got float32",
        ),
        (
            {name: on_device((8, 24, 2, 64), np.float16, FLOAT) for name in ("keys", "values")},
            "keys: expected blocks of a multiple of 16 tokens, got 24",
        ),
        ({"values": on_device((7, 16, 2, 64), np.float16, FLOAT)}, "values: expected"),
        ({"block_tables": on_device((0, 126), np.int32, INT)}, r"block_tables: expected at most 125 blocks .*, got 126"),
        ({"block_tables": on_device((0, 9), np.int64, INT)}, "block_tables: expected int32"),
        ({"context_tokens": on_device((1,), np.int32, INT)}, "context_tokens: expected"),
        ({"out": on_device((1, 4, 64), np.float32, FLOAT)}, "out: expected"),
        ({"workspace": on_device((64,), np.uint8, UINT)}, r"workspace: expected \d+ bytes or more, got 64"),
        ({"reports": on_device((0, 8), np.uint8, UINT)}, "reports: expected uint8"),
        ({"summaries": None}, "summaries: expected a locks_cpp.cuda.Summaries, got None"),
        ({"stream": "0"}, "stream: expected a cudaStream_t as a number"),
    ],
)
def test_a_mistake_is_named(changed, words):
    with pytest.raises(ValueError, match=words):
        Step().run(**changed)


@needs_module
def test_summaries_of_the_cpu_are_not_those_of_a_gpu():
    memory = np.zeros((8, locks_cpp.page_bytes(**SHAPE)), np.uint8)
    with pytest.raises(ValueError, match="memory: expected uint8"):
        cuda.Summaries(memory, **SHAPE)
    with pytest.raises(ValueError, match="summaries: expected a locks_cpp.cuda.Summaries"):
        Step().run(summaries=locks_cpp.Summaries(memory, **SHAPE))


@needs_module
def test_another_plan_than_the_summaries_is_refused():
    step = Step()
    plan = cuda.DecodePlan(locks_cpp.Config(format="graded12"), **GEOMETRY, max_requests=4, max_context_tokens=2000)
    with pytest.raises(ValueError, match="summaries: expected graded12.*, got graded8"):
        plan.run(**step.arguments)


@needs_module
def test_dense_attention_names_its_workspace():
    need = cuda.attend_workspace_bytes(query_heads=4, kv_heads=2, head_dim=64, requests=3)
    assert need > 3 * 4 * 66 * 4
    arguments = {
        name: Step().arguments[name] for name in ("queries", "keys", "values", "block_tables", "context_tokens", "out")
    }
    with pytest.raises(ValueError, match="softmax_scale"):
        cuda.attend(**arguments, softmax_scale=0, workspace=on_device((need,), np.uint8, UINT), stream=0)


@needs_module
@pytest.mark.parametrize("most", [3, 64, 300])
def test_a_plan_has_room_for_any_number_of_requests(most):
    """Attention cuts few rows finer than many, so that they need more memory."""
    everything = locks_cpp.Config(budget_tokens=2048)  # nothing but attention
    plan = cuda.DecodePlan(everything, **GEOMETRY, max_requests=most, max_context_tokens=2000)
    shape = {name: GEOMETRY[name] for name in ("query_heads", "kv_heads", "head_dim")}
    needs = [cuda.attend_workspace_bytes(**shape, requests=requests) for requests in range(1, most + 1)]
    states = 4 * (2 + 64) * 4
    assert plan.workspace_bytes >= max(need - requests * states - 64 for requests, need in enumerate(needs, 1))


@needs_module
def test_rows_are_copied_between_the_types_that_it_knows():
    rows = on_device((0, 4, 64), np.float16, FLOAT)
    cuda.copy_rows(rows, on_device((0, 4, 64), np.float32, FLOAT), stream=0)
    for source, target, words in (
        (rows, on_device((0, 4, 64), np.int32, INT), "target: expected float32 or float16 or bfloat16 or float8_e4m3fn"),
        (rows, on_device((1, 4, 64), np.float32, FLOAT), "target: expected"),
        (on_device((0, 4, 60), np.float16, FLOAT), rows, "head_dim: expected 64, 80"),
        (on_device((65536, 1, 64), np.float16, FLOAT), on_device((65536, 1, 64), np.float16, FLOAT), "at most 65535 rows"),
    ):
        with pytest.raises(ValueError, match=words):
            cuda.copy_rows(source, target, stream=0)
    scale = on_device((1,), np.float32, FLOAT)
    cuda.copy_rows(rows, on_device((0, 4, 64), np.uint8, UINT), scale=scale, stream=0)
    with pytest.raises(ValueError, match="scale: expected None where nothing is float8_e4m3fn or uint8"):
        cuda.copy_rows(rows, on_device((0, 4, 64), np.float32, FLOAT), scale=scale, stream=0)
