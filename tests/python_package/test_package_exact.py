"""What is attended whole is dense attention, whatever the layout of the cache."""

import numpy as np
import pytest
from built_package import locks_cpp
from dlpack_object import as_bfloat16
from package_data import LAYOUTS, attention, make_cache, make_plan, make_queries, make_summaries, step

WHOLE = locks_cpp.Config(budget_tokens=1024)


def assert_is_dense(out, cache, queries):
    for request in range(len(cache.tokens)):
        want, bound = attention(queries[request], *cache.of(request), queries.shape[2] ** -0.5)
        assert np.all(np.abs(out[request] - want) <= bound)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "block_tokens", "group"), [("f2", 16, 3), ("f2", 32, 1), ("f4", 128, 4), ("f4", 16, 7)])
def test_a_context_within_the_budget_is_attended_whole(layout, dtype, block_tokens, group):
    rng = np.random.default_rng(1)
    cache = make_cache(rng, [300, 1, 1024, 0], block_tokens=block_tokens, dtype=dtype, layout=layout)
    _, summaries, _ = make_summaries(cache, WHOLE)
    queries = make_queries(rng, cache, group)
    out, report = step(make_plan(cache, WHOLE, group=group), cache, summaries, queries)

    assert_is_dense(out, cache, queries)
    assert np.all(report.dense) and np.all(report.coverage == 1)
    assert np.array_equal(report.context_tokens, cache.tokens)
    assert np.array_equal(report.attended_tokens, cache.tokens)
    assert np.array_equal(report.attend_bytes, report.dense_bytes)
    assert np.array_equal(report.dense_bytes, cache.tokens * (2 * 2 * 64 * np.dtype(dtype).itemsize))
    assert not np.any(report.score_bytes) and not np.any(report.complete_bytes) and not np.any(report.completed_pages)


@pytest.mark.parametrize("head_dim", [80, 96, 128, 192, 256])
def test_every_head_dimension(head_dim):
    rng = np.random.default_rng(2)
    cache = make_cache(rng, [200], d=head_dim)
    _, summaries, _ = make_summaries(cache, WHOLE)
    queries = make_queries(rng, cache)
    out, _ = step(make_plan(cache, WHOLE), cache, summaries, queries)
    assert_is_dense(out, cache, queries)


def test_bfloat16_is_read_as_it_is():
    rng = np.random.default_rng(3)
    cache = make_cache(rng, [200], dtype=np.float32)
    (keys, cache.keys), (values, cache.values) = as_bfloat16(cache.keys), as_bfloat16(cache.values)
    _, summaries, _ = make_summaries(cache, WHOLE)
    queries = make_queries(rng, cache)
    out = np.empty_like(queries)
    make_plan(cache, WHOLE).run(queries, keys, values, summaries, cache.tables, cache.tokens, out)
    assert_is_dense(out, cache, queries)


def test_queries_and_outputs_may_be_views():
    rng = np.random.default_rng(4)
    cache = make_cache(rng, [64, 50])
    _, summaries, _ = make_summaries(cache, WHOLE)
    queries = rng.standard_normal((6, 4, 70)).astype(np.float32)[::-2, ::2, 3:67].transpose(1, 0, 2)  # [2 requests, 3 heads]
    queries = np.concatenate([queries, queries], axis=1)[::-1]
    holder = np.full((6, 2, 65), np.nan, np.float32)
    out = holder.transpose(1, 0, 2)[..., :64]
    make_plan(cache, WHOLE).run(queries, cache.keys, cache.values, summaries, cache.tables, cache.tokens, out)
    assert_is_dense(out, cache, queries)
    assert np.all(np.isnan(holder[..., 64]))


def test_no_requests_give_empty_reports():
    rng = np.random.default_rng(5)
    cache = make_cache(rng, [])
    _, summaries, _ = make_summaries(cache, WHOLE)
    out, report = step(make_plan(cache, WHOLE), cache, summaries, make_queries(rng, cache))
    assert out.shape == (0, 6, 64) and report.coverage.shape == (0,)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "block_tokens", "group"), [("f2", 16, 3), ("f4", 128, 1)])
def test_prefill_is_causal_attention(layout, dtype, block_tokens, group):
    rng = np.random.default_rng(6)
    cache = make_cache(rng, [300], block_tokens=block_tokens, dtype=dtype, layout=layout)
    visible = np.array([1, 16, 17, 150, 299, 300, 2], np.int32)
    queries = make_queries(rng, cache, group, len(visible))
    pages_per_block = block_tokens // locks_cpp.PAGE_TOKENS
    pages = (cache.tables[0][:, None] * pages_per_block + np.arange(pages_per_block)).ravel().astype(np.int32)
    pages = pages[:19]  # 304 tokens: of the last block some pages only
    out = np.empty_like(queries)
    locks_cpp.prefill(queries, cache.keys, cache.values, pages, visible, out, softmax_scale=0.125)
    for row, count in enumerate(visible):
        want, bound = attention(queries[row], *cache.of(0, count), 0.125)
        assert np.all(np.abs(out[row] - want) <= bound)


def test_prefill_of_no_rows():
    rng = np.random.default_rng(7)
    cache = make_cache(rng, [16])
    nothing, none = np.empty((0, 6, 64), np.float32), np.empty(0, np.int32)
    locks_cpp.prefill(nothing, cache.keys, cache.values, none, none, np.empty_like(nothing), softmax_scale=0.125)
