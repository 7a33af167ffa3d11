"""Keys and values are found by shape and stride alone, whatever the memory behind a cache looks like."""

import numpy as np
import pytest

locks_cpp = pytest.importorskip("locks_cpp", reason="the native module of locks_cpp is not built")

from locks_cpp.vllm import compat  # noqa: E402
from locks_cpp.vllm.refusal import Refusal  # noqa: E402

PAGES, HEADS, DIM = 5, 3, 64


def in_memory_order(shape, order):
    """Zeros of `shape` whose axes lie in memory in `order`, outermost first."""
    memory = np.zeros([shape[axis] for axis in order], np.float32)
    return memory.transpose(np.argsort(order))


# The shapes of the releases, each with the orders in memory that vLLM gives them: token-major, head-major, heads outermost.
LAYOUTS = [
    pytest.param(kind, shape, order, id=f"{kind} in memory {order}")
    for kind, shape, orders in (
        ("[pages, 2, 16, heads, dim]", (PAGES, 2, 16, HEADS, DIM), [(0, 1, 2, 3, 4), (0, 1, 3, 2, 4), (1, 0, 2, 3, 4)]),
        ("[2, pages, 16, heads, dim]", (2, PAGES, 16, HEADS, DIM), [(0, 1, 2, 3, 4), (0, 1, 3, 2, 4), (1, 0, 2, 3, 4)]),
        ("[pages, heads, 16, 2 dim]", (PAGES, HEADS, 16, 2 * DIM), [(0, 2, 1, 3), (0, 1, 2, 3), (1, 0, 2, 3)]),
    )
    for order in orders
]


def place(kind, page, token, head):
    """Where the key and the value of one token lie."""
    if kind == "[pages, 2, 16, heads, dim]":
        return (page, 0, token, head), (page, 1, token, head)
    if kind == "[2, pages, 16, heads, dim]":
        return (0, page, token, head), (1, page, token, head)
    return (page, head, token, slice(0, DIM)), (page, head, token, slice(DIM, None))


@pytest.mark.parametrize(("kind", "shape", "order"), LAYOUTS)
def test_views_are_the_cache_itself(kind, shape, order):
    cache = in_memory_order(shape, order)
    keys, values = compat.key_value_views(cache, HEADS, DIM)
    for part, view in enumerate((keys, values)):
        assert view.shape == (PAGES, 16, HEADS, DIM)
        assert np.shares_memory(view, cache) and view.strides[-1] == view.itemsize
        view[4, 11, 2] = 1 + part
    at_key, at_value = place(kind, 4, 11, 2)
    assert (cache[at_key] == 1).all() and (cache[at_value] == 2).all()
    assert np.count_nonzero(cache) == 2 * DIM


def test_one_head_and_one_page_are_no_puzzle():
    keys, values = compat.key_value_views(np.zeros((1, 1, 16, 2 * DIM), np.float32), 1, DIM)
    assert keys.shape == values.shape == (1, 16, 1, DIM)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((PAGES, HEADS, 32, 2 * DIM), "shape [5, 3, 32, 128]"),  # blocks that are not pages
        ((PAGES, HEADS, 16, DIM), "shape [5, 3, 16, 64]"),
        ((PAGES, 16, HEADS, 2 * DIM), "known are [pages, 2, 16, heads, dim]"),
        ((PAGES, 3, 16, HEADS, DIM), "3 KV heads of dimension 64"),
        ((PAGES * 4096,), "shape [20480]"),
        ((2, 2, 16, HEADS, DIM), "cannot be told apart"),
    ],
)
def test_another_shape_is_named(shape, words):
    with pytest.raises(Refusal) as caught:
        compat.key_value_views(np.zeros(shape, np.float32), HEADS, DIM)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "shape", "order"), LAYOUTS)
def test_the_library_reads_every_layout_alike(kind, shape, order):
    """Summaries of the same keys and values are the same bytes, wherever they lie."""
    draw = np.random.default_rng(3)
    keys, values = draw.standard_normal((2, PAGES, 16, HEADS, DIM), dtype=np.float32)
    plain = {"format": "graded8", "head_dim": DIM, "kv_heads": HEADS, "values": True}
    page_bytes = locks_cpp.page_bytes(**plain)
    pages = np.arange(PAGES, dtype=np.int32)
    memories = []
    for of_keys, of_values in ((keys, values), compat.key_value_views(in_memory_order(shape, order), HEADS, DIM)):
        of_keys[:], of_values[:] = keys, values
        memories.append(np.zeros((PAGES, compat.store_page_bytes(page_bytes)), np.uint8))
        locks_cpp.summarize(of_keys, of_values, pages, locks_cpp.Summaries(memories[-1], **plain))
    np.testing.assert_array_equal(memories[0], memories[1])
    assert memories[0][:, :page_bytes].any(axis=1).all() and not memories[0][:, page_bytes:].any()


def test_a_store_page_can_be_said_in_every_vllm():
    """Up to 0.28 a page is 16 tokens of two equal halves of elements; from 0.29 it is so many bytes."""
    for summary_bytes in range(1, 3000, 37):
        page_bytes = compat.store_page_bytes(summary_bytes)
        assert page_bytes >= summary_bytes and page_bytes - summary_bytes < compat.STORE_ALIGNMENT
        for item_bytes in (2, 4):
            head_size, rest = divmod(page_bytes, 2 * 16 * item_bytes)
            assert rest == 0
            shape = compat.store_shape(7, head_size)
            assert shape == (7, page_bytes // item_bytes)


@pytest.mark.parametrize(
    ("environment", "cpus"),
    [
        ({}, None),
        ({"GOMP_CPU_AFFINITY": "0 1 2"}, {0, 1, 2}),
        ({"GOMP_CPU_AFFINITY": "4-6 9"}, {4, 5, 6, 9}),
        ({"OMP_PLACES": "{0,1,5}", "OMP_PROC_BIND": "true"}, {0, 1, 5}),
        ({"KMP_AFFINITY": "granularity=fine,explicit,proclist=[2,3]"}, {2, 3}),
        ({"KMP_AFFINITY": "compact"}, None),
        ({"OMP_PLACES": "cores"}, None),
    ],
)
def test_the_processors_of_the_worker(environment, cpus):
    assert compat.omp_cpus(environment) == cpus
