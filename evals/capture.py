"""The queries, keys and values of one decode step of stock llama.cpp, by its evaluation callback.

Runs in a process of its own (session.py). The layout of ggml's tensors is declared here; attention computed from what was
read by it must be llama.cpp's own, so that a host that lays them out otherwise is refused."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from llama_host import HostError

MAX_DIMS, MAX_SRC, MAX_OP_PARAMS, MAX_NAME = 4, 10, 64, 64
TYPES = {0: np.float32, 1: np.float16}
ATTENTION = b"FLASH_ATTN_EXT"
# Root mean square of the difference, as a share of the output's. llama.cpp adds up in half precision, and errs by more
# the longer the context is (0.04 at 7,000 tokens); tensors laid out otherwise give outputs that have nothing in common: 1.
MAX_ERROR = 0.3
MASKED = -1e4  # and below: not visible


class _Tensor(ctypes.Structure):
    pass


_POINTER = ctypes.POINTER(_Tensor)
_Tensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * MAX_DIMS),
    ("nb", ctypes.c_size_t * MAX_DIMS),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_float * (MAX_OP_PARAMS // 4)),
    ("flags", ctypes.c_int32),
    ("src", _POINTER * MAX_SRC),
    ("view_src", _POINTER),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * MAX_NAME),
]
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_bool, _POINTER, ctypes.c_bool, ctypes.c_void_p)


@dataclass(frozen=True)
class Step:
    """Of every layer, as far as the step sees: the decoded token's own key and value are the last."""

    tokens: list[str]
    scale: float  # of the products
    queries: np.ndarray  # float32 [layers, query heads, head dim]
    keys: np.ndarray  # float16 [layers, tokens, KV heads, head dim]
    values: np.ndarray  # float16, likewise


def read(state, tokens):
    """Reads all tokens but the last with dense attention, and captures the step of the last one."""
    library = state.host.library
    library.ggml_op_name.restype, library.ggml_op_name.argtypes = ctypes.c_char_p, [ctypes.c_int]
    found, faults, capturing = [], [], False

    def evaluated(tensor, is_asked, _):
        if not capturing or library.ggml_op_name(tensor.contents.op) != ATTENTION:
            return not is_asked
        if not is_asked:
            # An exception does not pass through C.
            try:
                found.append(_layer(tensor.contents, len(tokens)))
            except HostError as error:
                faults.append(error)
        return True

    callback = _CALLBACK(evaluated)
    context = state.context("capture", context_tokens=len(tokens) + 64, eval_callback=callback)
    context.read(tokens[:-1])
    capturing = True
    context.step(tokens[-1], len(tokens) - 1)
    state.close("capture")
    if faults:
        raise faults[0]
    if len(found) != state.model.num_layers or len({(layer[1].shape, layer[2].shape) for layer in found}) != 1:
        raise HostError(f"{len(found)} layers of flash attention of one kind were expected to be {state.model.num_layers}")
    scales, queries, keys, values = zip(*found)
    pieces = [state.model.detokenize(tokens[i : i + 1]) for i in range(len(tokens))]
    return Step(pieces, scales[0], np.array(queries), np.array(keys), np.array(values))


def _layer(node, tokens):
    scale, bias, cap = node.op_params[:3]
    if bias or cap or node.src[4]:
        raise HostError("attention with biases, a cap on its products or sinks cannot be shown")
    queries, keys, values = (_array(node.src[i].contents) for i in range(3))
    mask, out = _array(node.src[3].contents) if node.src[3] else None, _array(node)
    if queries.shape[:3:2] != (1, 1) or keys.shape != values.shape or keys.shape[2] < tokens:
        raise HostError("attention of this kind cannot be shown")
    if mask is not None and not (mask[0, 0, 0, :tokens] > MASKED).all():
        raise HostError("a layer sees only the last tokens; models with sliding windows cannot be shown")
    queries = queries[0, :, 0].astype(np.float32)
    keys, values = (np.ascontiguousarray(x[0, :, :tokens].swapaxes(0, 1), np.float16) for x in (keys, values))
    expected = np.einsum("ht,thd->hd", attention(queries, keys, scale), _by_query_head(values, queries))
    if not _rms(expected - out[0, 0]) <= MAX_ERROR * _rms(out):
        raise HostError("this llama.cpp lays out its tensors in a way unknown here")
    return scale, queries, keys, values


def attention(queries, keys, scale):
    """Exact shares, float32 [query heads, tokens]."""
    products = scale * np.einsum("hd,thd->ht", queries, _by_query_head(keys, queries))
    shares = np.exp(products - products.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def _rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


def _by_query_head(rows, queries):
    """Keys or values [tokens, KV heads, head dim] as [tokens, query heads, head dim]."""
    return np.repeat(rows.astype(np.float32), len(queries) // rows.shape[1], axis=1)


def _array(tensor):
    if tensor.type not in TYPES:
        raise HostError(f"a cache of ggml's type {tensor.type} cannot be shown; f16 and f32 can")
    kind = np.dtype(TYPES[tensor.type])
    size = sum((count - 1) * stride for count, stride in zip(tensor.ne, tensor.nb)) + kind.itemsize
    memory = np.ctypeslib.as_array(ctypes.cast(tensor.data, ctypes.POINTER(ctypes.c_uint8)), (size,))
    return np.ndarray(tuple(tensor.ne)[::-1], kind, memory, strides=tuple(tensor.nb)[::-1]).copy()
