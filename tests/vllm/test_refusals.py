"""What is not served is refused by name. What vLLM hands over is played by plain objects."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

locks_cpp = pytest.importorskip("locks_cpp", reason="the native module of locks_cpp is not built")

from locks_cpp.vllm.refusal import (  # noqa: E402
    CPU_CACHE_DTYPES,
    CUDA_CACHE_DTYPES,
    HEAD_DIMS,
    Refusal,
    refuse_engine,
    refuse_layer,
)

SERVED = {
    "head_dim": 128,
    "head_dims": HEAD_DIMS,
    "kv_cache_dtype": "auto",
    "cache_dtypes": CPU_CACHE_DTYPES,
    "attn_type": "decoder",
    "alibi_slopes": None,
    "sliding_window": None,
    "logits_soft_cap": None,
    "kv_sharing_target": None,
    "extra": {},
}


def engine(parallel=None, model=None, **others):
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**(parallel or {})), model_config=SimpleNamespace(**(model or {})), **others
    )


def refusal_of(call, *args, **kwargs):
    with pytest.raises(Refusal) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plain_decoder_is_served():
    refuse_layer(**SERVED)
    for cache_dtype in ("fp8", "fp8_e4m3"):
        refuse_layer(**{**SERVED, "kv_cache_dtype": cache_dtype, "cache_dtypes": CUDA_CACHE_DTYPES})
    refuse_layer(**{**SERVED, "logits_soft_cap": 0.0, "extra": {"sinks": None, "use_alibi_sqrt": False}})
    refuse_engine(engine({"decode_context_parallel_size": 1}, {"use_mla": False}, kv_transfer_config=None))
    refuse_engine(engine(speculative_config=SimpleNamespace(method="ngram")))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"head_dim": 112}, "head dimension 112; served are 64, 80, 96, 128, 192, 256"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype fp8_e4m3"),
        (
            {"kv_cache_dtype": "float32", "cache_dtypes": CUDA_CACHE_DTYPES},
            "served are auto, float16, bfloat16, fp8, fp8_e4m3",
        ),
        ({"kv_cache_dtype": "fp8_e5m2", "cache_dtypes": CUDA_CACHE_DTYPES}, "--kv-cache-dtype fp8_e5m2; served are auto"),
        ({"kv_cache_dtype": "int4_per_token_head"}, "int4_per_token_head"),
        ({"attn_type": "encoder_only"}, "encoder_only"),
        ({"attn_type": SimpleNamespace(value="encoder_decoder")}, "encoder_decoder"),
        ({"alibi_slopes": [0.5]}, "ALiBi"),
        ({"sliding_window": 4096}, "sliding window (4096 tokens)"),
        ({"logits_soft_cap": 50.0}, "soft cap 50.0"),
        ({"kv_sharing_target": "model.layers.3.self_attn.attn"}, "share the KV cache of model.layers.3"),
        ({"extra": {"sinks": object()}}, "attention sinks"),
        ({"extra": {"chunk_lookback": 2}}, "chunk_lookback"),
    ],
)
def test_a_layer_that_is_not_served(changed, words):
    assert words in refusal_of(refuse_layer, **{**SERVED, **changed})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (engine({"decode_context_parallel_size": 2}), "--decode-context-parallel-size is 2"),
        (engine({"prefill_context_parallel_size": 4}), "--prefill-context-parallel-size is 4"),
        (engine({"use_ubatching": True}), "--enable-dbo"),
        (engine(kv_transfer_config=object()), "KV connector"),
        (
            engine(cache_config=SimpleNamespace(kv_cache_dtype_skip_layers=["0", "1"])),
            "--kv-cache-dtype-skip-layers 0 1",
        ),
        (engine(speculative_config=SimpleNamespace(method="eagle3")), "speculation by 'eagle3'"),
        (engine(speculative_config=SimpleNamespace(method="draft_model")), "speculation by 'draft_model'"),
        (engine(speculative_config=SimpleNamespace()), "speculation by None"),
        (engine(model={"use_mla": True}), "MLA"),
        (engine(model={"is_hybrid": True}), "state-space"),
        (engine(model={"is_encoder_decoder": True}), "encoder"),
        (engine(model={"attention_chunk_size": 8192}), "chunks"),
        (engine(model={"rswa_window": 64}), "sliding window"),
        (engine(model={"is_mm_prefix_lm": True}), "both directions"),
    ],
)
def test_an_engine_that_is_not_served(config, words):
    assert words in refusal_of(refuse_engine, config)


def test_registering_never_raises(monkeypatch, caplog):
    """Without vLLM, or with one that has no registry, the plug-in says so and ends nothing."""
    from locks_cpp.vllm import register

    for name in ("vllm", "vllm.platforms", "vllm.v1.attention.backends.registry"):
        monkeypatch.setitem(sys.modules, name, None)
    with caplog.at_level("ERROR"):
        register()
    assert "LOCKS is not available" in caplog.text


def test_without_the_native_module_the_plugin_can_still_be_loaded(tmp_path):
    """vLLM only logs a plug-in that cannot be imported, and would run without LOCKS."""
    shutil.copytree(
        Path(locks_cpp.__file__).parent, tmp_path / "locks_cpp", ignore=shutil.ignore_patterns("_native*", "__pycache__")
    )
    script = """
import locks_cpp.vllm
assert callable(locks_cpp.vllm.register)
try:
    locks_cpp.Config
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stderr == "" and "the native module of locks_cpp cannot be loaded: " in run.stdout
