"""What LOCKS does not serve ends vLLM's start with one line, before weights are read: these models have none."""

import sys
from types import SimpleNamespace

import models
import pytest
import torch

LOCKS_REFUSES = "LOCKS refuses to start: "

MODELS = {
    "tiny": {},
    "head dimension 32": {"head_dim": 32},
    "mistral with a window": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 256},
    "gemma 2 with a soft cap": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "layer_types": ["full_attention", "full_attention"],
        "sliding_window": None,  # 4096 otherwise, which some releases give to all layers
        "query_pre_attn_scalar": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,  # which some releases assert
    },
    "bloom with ALiBi": {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "n_head": 4,
        "n_layer": 2,
        "hidden_size": 256,
    },
    "deepseek with MLA": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "kv_lora_rank": 64,
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "n_routed_experts": 4,
        "first_k_dense_replace": 2,
        "moe_layer_freq": 1,
    },
}


@pytest.mark.parametrize(
    ("model", "locks", "engine", "words"),
    [
        ("tiny", {"budget": 512}, {}, "unknown setting budget; the settings are preset, format, budget_tokens"),
        ("tiny", {"budget_tokens": 64}, {}, "budget_tokens"),
        ("tiny", "yes", {}, "additional_config['locks'] is 'yes'"),
        (
            "tiny",
            {},
            {"kv_cache_dtype": "fp8"},
            "--kv-cache-dtype fp8; served are auto, float32, float16, bfloat16",
        ),
        ("tiny", {}, {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}}, "KV connector"),
        ("head dimension 32", {}, {}, "head dimension 32; served are 64, 80, 96, 128, 192, 256"),
        ("mistral with a window", {}, {}, "sliding window (256 tokens)"),
        ("gemma 2 with a soft cap", {}, {}, "soft cap 50.0"),
        ("bloom with ALiBi", {}, {}, "ALiBi"),
    ],
)
def test_the_start_ends_with_one_line(tmp_path, model, locks, engine, words):
    refused(models.write_config(tmp_path, **MODELS[model]), locks, words, **engine)


def test_mla(tmp_path):
    """vLLM for the CPU once had no MLA, and then says so by itself."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    served = "CPU_MLA" in AttentionBackendEnum.__members__
    start, words = (LOCKS_REFUSES, "the model uses") if served else ("MLA is not supported on CPU", "")
    refused(models.write_config(tmp_path, **MODELS["deepseek with MLA"]), {}, words, start)


def test_a_missing_native_module(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "locks_cpp._native", None)
    refused(models.write_config(tmp_path), {}, "the native module of locks_cpp cannot be loaded")


def test_an_interface_that_is_not_understood(tmp_path, monkeypatch):
    from vllm.v1.attention.backend import AttentionBackend

    monkeypatch.delattr(AttentionBackend, "forward_includes_kv_cache_update")
    refused(
        models.write_config(tmp_path),
        {},
        "it lacks vllm.v1.attention.backend.AttentionBackend.forward_includes_kv_cache_update",
    )


def refused(folder, locks, words, start=LOCKS_REFUSES, **engine):
    from vllm import LLM

    with pytest.raises(Exception) as caught:
        LLM(
            model=str(folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="float32",
            max_model_len=512,
            kv_cache_memory_bytes=64 << 20,
            additional_config={"locks": locks},
            **engine,
        )
    line = str(caught.value)
    assert line.startswith(start) and words in line and "\n" not in line


def test_without_a_gpu_custom_is_refused(monkeypatch):
    """Played: vLLM is told that it is on CUDA when it registers plug-ins, and then asks the backend as it does there."""
    import vllm.platforms
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from locks_cpp.vllm import register

    with monkeypatch.context() as played:
        played.setattr(
            vllm.platforms, "current_platform", SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: True), raising=False
        )
        register()
    try:
        backend = AttentionBackendEnum.CUSTOM.get_class()
        assert AttentionBackendEnum[backend.get_name()] is AttentionBackendEnum.CUSTOM
        # This machine may have a GPU and the build a CUDA module; what is played is that one of them is missing.
        monkeypatch.setattr("locks_cpp.vllm.cuda.why_unavailable", lambda: "there is no GPU")
        assert backend.validate_configuration(head_size=128, dtype=None) == ["LOCKS refuses to start: there is no GPU"]
        monkeypatch.setattr("locks_cpp.vllm.cuda.why_unavailable", lambda: "")
        reasons = backend.validate_configuration(head_size=128, dtype=None, kv_cache_dtype="fp8_e5m2")
        assert reasons == [
            "LOCKS refuses to start: --kv-cache-dtype fp8_e5m2; served are auto, float16, bfloat16, fp8, fp8_e4m3"
        ]
        reasons = backend.validate_configuration(head_size=128, dtype=torch.float16, kv_cache_dtype="fp8")
        assert len(reasons) == 1 and reasons[0].startswith(
            "LOCKS refuses to start: --kv-cache-dtype fp8 with --dtype float16: vLLM's FlashAttention"
        )
    finally:
        AttentionBackendEnum.CUSTOM.clear_override()
