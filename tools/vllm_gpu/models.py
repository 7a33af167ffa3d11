"""Models of random weights: a folder with a configuration is all that vLLM needs for them."""

import json
from pathlib import Path

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}
SHAPES = {
    "tiny": {
        **LLAMA,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 4096,
        "max_position_embeddings": 16384,
    },
    # Llama-3.1-8B
    "llama": {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 1048576,
    },
    # GLM-4-9B-Chat-1M
    "glm": {
        "architectures": ["GlmForCausalLM"],
        "model_type": "glm",
        "hidden_act": "silu",
        "rms_norm_eps": 1.5625e-7,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "pad_token_id": 151329,
        "eos_token_id": [151329, 151336, 151338],
        "partial_rotary_factor": 0.5,
        "rope_theta": 1e8,
        "torch_dtype": "bfloat16",
        "hidden_size": 4096,
        "intermediate_size": 13696,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151552,
        "max_position_embeddings": 1048576,
    },
}


def write(folder: Path, name: str, **changes) -> str:
    path = folder / "-".join([name, *map(str, changes.values())])
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**SHAPES[name], **changes}))
    return str(path)


def write_weights(path: str) -> None:
    """For a Llama's folder: the same weights, however many ranks they are divided over. Drawn as by draw_weights."""
    import numpy as np
    from safetensors.numpy import save_file

    shape = json.loads((Path(path) / "config.json").read_text())
    draw = np.random.default_rng(7)

    def matrix(outputs: int, inputs: int, gain: float = 1.0):
        return (draw.standard_normal((outputs, inputs), np.float32) * gain * inputs**-0.5).astype(np.float16)

    hidden, inner, vocabulary = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    heads, kv_heads = (shape[name] * shape["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    weights = {
        "model.embed_tokens.weight": draw.standard_normal((vocabulary, hidden), np.float32).astype(np.float16),
        "lm_head.weight": matrix(vocabulary, hidden),
        "model.norm.weight": np.ones(hidden, np.float16),
    }
    for number in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{number}."
        weights |= {
            layer + "self_attn.q_proj.weight": matrix(heads, hidden, 2),
            layer + "self_attn.k_proj.weight": matrix(kv_heads, hidden, 2),
            layer + "self_attn.v_proj.weight": matrix(kv_heads, hidden, 2),
            layer + "self_attn.o_proj.weight": matrix(hidden, heads),
            layer + "mlp.gate_proj.weight": matrix(inner, hidden),
            layer + "mlp.up_proj.weight": matrix(inner, hidden),
            layer + "mlp.down_proj.weight": matrix(hidden, inner),
            layer + "input_layernorm.weight": np.ones(hidden, np.float16),
            layer + "post_attention_layernorm.weight": np.ones(hidden, np.float16),
        }
    save_file(weights, Path(path) / "model.safetensors", metadata={"format": "pt"})


def draw_weights(model) -> None:
    """vLLM's own dummy weights are so small that attention has no influence on the tokens. For LLM.apply_model."""
    import torch

    draw = torch.Generator(device=next(model.parameters()).device).manual_seed(7)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.fill_(1)
            continue
        spread = 1.0 if "embed" in name else weight.shape[-1] ** -0.5
        weight.data.normal_(0, 2 * spread if "qkv" in name else spread, generator=draw)
