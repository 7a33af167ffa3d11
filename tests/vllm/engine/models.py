"""Tiny models. Weights are drawn by fan-in: with vLLM's dummy weights attention has no influence on the tokens, and a
backend that returns zeros passes every test."""

import json
from pathlib import Path

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
}


def write_config(folder: Path, **changes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**TINY, **changes}))
    return folder


def write_checkpoint(folder: Path) -> Path:
    import torch
    from safetensors.torch import save_file

    write_config(folder)
    draw = torch.Generator().manual_seed(7)

    def matrix(outputs: int, inputs: int, gain: float = 1.0):
        return torch.randn(outputs, inputs, generator=draw) * gain * inputs**-0.5

    hidden, inner, vocabulary = TINY["hidden_size"], TINY["intermediate_size"], TINY["vocab_size"]
    embedding = torch.randn(vocabulary, hidden, generator=draw)
    head = matrix(vocabulary, hidden)
    # Tokens tend to go round in groups of five, so that n-gram speculation is right now and then.
    token = torch.arange(vocabulary // 5 * 5)
    head[token - token % 5 + (token + 1) % 5] += 0.9 * embedding[token] * hidden**-0.5
    queries, keys = (TINY[name] * TINY["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    weights = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(hidden),
    }
    for number in range(TINY["num_hidden_layers"]):
        layer = f"model.layers.{number}."
        weights |= {
            layer + "self_attn.q_proj.weight": matrix(queries, hidden, 2),
            layer + "self_attn.k_proj.weight": matrix(keys, hidden, 2),
            layer + "self_attn.v_proj.weight": matrix(keys, hidden, 2),
            layer + "self_attn.o_proj.weight": matrix(hidden, queries),
            layer + "mlp.gate_proj.weight": matrix(inner, hidden),
            layer + "mlp.up_proj.weight": matrix(inner, hidden),
            layer + "mlp.down_proj.weight": matrix(hidden, inner),
            layer + "input_layernorm.weight": torch.ones(hidden),
            layer + "post_attention_layernorm.weight": torch.ones(hidden),
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
