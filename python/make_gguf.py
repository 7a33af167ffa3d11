"""Writes a model of the 1B class with random weights: its speed is a real model's, its text is noise.

python make_gguf.py out/random-1b.gguf
"""

import struct
import sys
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Shape:
    layers: int = 16
    hidden: int = 2048
    query_heads: int = 32
    kv_heads: int = 8
    feed_forward: int = 8192
    vocabulary: int = 512
    context: int = 131072
    sliding_window: int = 0  # tokens that every second layer sees, from the first one on; 0: all layers see everything
    full_precision: bool = False  # float weights: the model then adds no rounding of its own to what is measured

    @property
    def architecture(self):
        return "gemma3" if self.sliding_window else "llama"

    @property
    def head_dim(self):
        return self.hidden // self.query_heads


BLOCK, BLOCK_BYTES = 32, 18
# Mean square of a code that is uniform on -8 .. 7.
CODE_RMS = 4.64


def random_f32(generator, rows, columns):
    return generator.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))


def random_q4_0(generator, rows, columns):
    """Rows of Q4_0 blocks, uint8 [rows, columns / 32 * 18]: a half precision scale and 32 random codes each, of variance
    1 / columns."""
    blocks = rows * columns // BLOCK
    data = np.empty((blocks, BLOCK_BYTES), np.uint8)
    data[:, :2] = np.full((blocks, 1), 1.0 / (CODE_RMS * np.sqrt(columns)), np.float16).view(np.uint8)
    data[:, 2:] = np.frombuffer(generator.bytes(blocks * 16), np.uint8).reshape(blocks, 16)
    return data.reshape(rows, columns // BLOCK * BLOCK_BYTES)


F32, Q4_0 = 0, 2
ALIGNMENT = 32
UINT32, FLOAT32, STRING = 4, 6, 8


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, value):
    head = string(key)
    if isinstance(value, str):
        return head + struct.pack("<I", STRING) + string(value)
    if isinstance(value, float):
        return head + struct.pack("<If", FLOAT32, value)
    return head + struct.pack("<II", UINT32, value)


def tensors(shape):
    """Name, rows and columns of every tensor; rows is 0 for a vector of ones."""
    kv_width = shape.kv_heads * shape.head_dim
    yield "token_embd.weight", shape.vocabulary, shape.hidden
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", 0, shape.hidden
        yield prefix + "attn_q.weight", shape.hidden, shape.hidden
        yield prefix + "attn_k.weight", kv_width, shape.hidden
        yield prefix + "attn_v.weight", kv_width, shape.hidden
        yield prefix + "attn_output.weight", shape.hidden, shape.hidden
        yield prefix + "ffn_norm.weight", 0, shape.hidden
        yield prefix + "ffn_gate.weight", shape.feed_forward, shape.hidden
        yield prefix + "ffn_up.weight", shape.feed_forward, shape.hidden
        yield prefix + "ffn_down.weight", shape.hidden, shape.feed_forward
        if shape.sliding_window:
            yield prefix + "attn_q_norm.weight", 0, shape.head_dim
            yield prefix + "attn_k_norm.weight", 0, shape.head_dim
            yield prefix + "post_attention_norm.weight", 0, shape.hidden
            yield prefix + "post_ffw_norm.weight", 0, shape.hidden
    yield "output_norm.weight", 0, shape.hidden
    yield "output.weight", shape.vocabulary, shape.hidden


def write(path, shape=Shape(), seed=1):
    generator = np.random.default_rng(seed)
    pairs = {
        "general.architecture": shape.architecture,
        "general.name": "random weights",
        "general.file_type": F32 if shape.full_precision else Q4_0,
        "tokenizer.ggml.model": "no_vocab",
    }
    of_model = {
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "block_count": shape.layers,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.query_heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": shape.head_dim,
        "rope.freq_base": 500000.0,
        "vocab_size": shape.vocabulary,
    }
    if shape.sliding_window:
        of_model |= {"attention.sliding_window": shape.sliding_window, "attention.sliding_window_pattern": 2}
    pairs |= {f"{shape.architecture}.{key}": value for key, value in of_model.items()}
    listed = list(tensors(shape))
    header = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(pairs))
    header += b"".join(pair(key, value) for key, value in pairs.items())
    offset = 0
    for name, rows, columns in listed:
        dims = [columns, rows] if rows else [columns]
        quantized = rows > 0 and not shape.full_precision
        size = rows * columns // BLOCK * BLOCK_BYTES if quantized else 4 * max(rows, 1) * columns
        header += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, Q4_0 if quantized else F32, offset)
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    matrix = random_f32 if shape.full_precision else random_q4_0
    with open(path, "wb") as file:
        file.write(header)
        for _, rows, columns in listed:
            file.write(bytes(-file.tell() % ALIGNMENT))
            (matrix(generator, rows, columns) if rows else np.ones(columns, np.float32)).tofile(file)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: make_gguf.py FILE", file=sys.stderr)
        sys.exit(2)
    write(sys.argv[1])
