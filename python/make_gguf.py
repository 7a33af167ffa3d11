"""Writes a model of the 1B class with random weights: its speed is a real model's, its text is noise.

    python make_gguf.py out/random-1b.gguf
"""

import sys
from dataclasses import dataclass

import gguf
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

    @property
    def head_dim(self):
        return self.hidden // self.query_heads


BLOCK = 32
# Mean square of a code that is uniform on -8 .. 7.
CODE_RMS = 4.64


def random_q4_0(generator, rows, columns):
    """Rows of Q4_0 blocks, uint8 [rows, columns / 32 * 18]: a half precision scale and 32 random codes each, of variance 1 / columns."""
    blocks = rows * columns // BLOCK
    data = np.empty((blocks, 18), np.uint8)
    data[:, :2] = np.full((blocks, 1), 1.0 / (CODE_RMS * np.sqrt(columns)), np.float16).view(np.uint8)
    data[:, 2:] = np.frombuffer(generator.bytes(blocks * 16), np.uint8).reshape(blocks, 16)
    return data.reshape(rows, columns // BLOCK * 18)


def write(path, shape=Shape(), seed=1):
    generator = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random weights")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.query_heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name, rows, columns):
        writer.add_tensor(name, random_q4_0(generator, rows, columns), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    def norm(name):
        writer.add_tensor(name, np.ones(shape.hidden, np.float32))

    matrix("token_embd.weight", shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        norm(prefix + "attn_norm.weight")
        matrix(prefix + "attn_q.weight", shape.hidden, shape.hidden)
        matrix(prefix + "attn_k.weight", shape.kv_heads * shape.head_dim, shape.hidden)
        matrix(prefix + "attn_v.weight", shape.kv_heads * shape.head_dim, shape.hidden)
        matrix(prefix + "attn_output.weight", shape.hidden, shape.hidden)
        norm(prefix + "ffn_norm.weight")
        matrix(prefix + "ffn_gate.weight", shape.feed_forward, shape.hidden)
        matrix(prefix + "ffn_up.weight", shape.feed_forward, shape.hidden)
        matrix(prefix + "ffn_down.weight", shape.hidden, shape.feed_forward)
    norm("output_norm.weight")
    matrix("output.weight", shape.vocabulary, shape.hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: make_gguf.py FILE", file=sys.stderr)
        sys.exit(2)
    write(sys.argv[1])
