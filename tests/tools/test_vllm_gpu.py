"""What tools/vllm_gpu counts and measures, as far as that goes without a GPU and vLLM."""

import os
import re
import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "vllm_gpu"))

import stages

with mock.patch.dict(os.environ):  # it sets variables of vLLM's
    import speed


def test_every_kernel_of_a_step_has_a_stage():
    """Stages are known by namespaces, of which a change in src/ says nothing there."""
    sources = [*(ROOT / "src").glob("*/*.cu"), *(ROOT / "src").glob("*/*.cuh")]
    found = {name for path in sources for name in re.findall(r"^namespace locks::cuda::(\w+) \{", path.read_text(), re.M)}
    assert {"score_kernels", "select_kernels", "attend_stage", "complete_kernels", "summarize_stage"} <= found
    assert stages.stage_of("void locks::cuda::score_kernels::score_pages<(locks::FormatId)2, 2, 1>(...)") == "score"
    assert stages.stage_of("void locks::cuda::(anonymous namespace)::always_kernel<__nv_bfloat162, 16>(...)") == "attend"
    assert stages.stage_of("void vllm::reshape_and_cache_flash_kernel<...>") == "the rest"
    assert stages.stage_of("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(...)") == "collective"


def test_a_moment_counts_for_one_stage():
    kernels = [(3, 1, "locks::cuda::score_kernels::a"), (6, 2, "locks::cuda::select_kernels::b"), (9, 8, "flash::c")]
    found = {stage: us for stage, us in stages.by_stage(kernels).items() if us}
    assert found == {"score": 2, "select": 3, "FlashAttention": 1, "no kernel": 2}


def test_rows():
    assert speed.contexts_of("2x131072") == [131072, 131072]
    assert speed.contexts_of("3x1024-32768") == [1024, 16896, 32768]


def test_engines_measure_in_turn(tmp_path):
    with speed.turns(None) as wait_for_turn:
        wait_for_turn()
    with speed.turns(tmp_path / "turns") as wait_for_turn:
        wait_for_turn()
