"""The bytes of summaries: where they lie, and that they depend on nothing but the page's keys and values."""

import numpy as np
import pytest
from built_package import locks_cpp
from package_data import LAYOUTS, make_cache, make_plan, make_queries, make_summaries, step, strided

CONFIG = locks_cpp.Config()


def test_the_layouts_of_cache_and_memory_do_not_matter():
    rng = np.random.default_rng(21)
    cache = make_cache(rng, [2000], block_tokens=32)
    queries = make_queries(rng, cache)
    row = locks_cpp.page_bytes(CONFIG.format, 64, 2, True)
    results = []
    for extra_bytes, layout in zip((0, 1, 77), LAYOUTS, strict=True):
        cache.keys, cache.values = strided(layout, cache.keys, cache.values)
        memory, summaries, report = make_summaries(cache, CONFIG, extra_bytes=extra_bytes)
        assert (report.records, report.not_finite_records) == (2 * len(memory), 0)
        assert np.all(memory[:, row:] == 0xA5)
        results.append((memory[:, :row], step(make_plan(cache, CONFIG), cache, summaries, queries)[0]))
    for memory, out in results[1:]:
        assert np.array_equal(memory, results[0][0])
        assert np.array_equal(out, results[0][1])


@pytest.mark.parametrize("format_name", locks_cpp.formats())
def test_records_come_first_and_value_parts_behind_them(format_name):
    rng = np.random.default_rng(22)
    cache = make_cache(rng, [100], heads=3)
    config = locks_cpp.Config(format=format_name)
    memory, _, _ = make_summaries(cache, config)
    record = locks_cpp.page_bytes(format_name, 64, 1, False)
    part = locks_cpp.page_bytes(format_name, 64, 1, True) - record
    assert memory.shape[1] == 3 * (record + part)
    for head in range(3):
        alone = make_cache(rng, [100], heads=1)
        alone.keys, alone.values = cache.keys[:, :, head : head + 1], cache.values[:, :, head : head + 1]
        own, _, _ = make_summaries(alone, config)
        assert np.array_equal(own[:, :record], memory[:, head * record :][:, :record])
        assert np.array_equal(own[:, record:], memory[:, 3 * record + head * part :][:, :part])


def test_only_the_listed_pages_are_written():
    rng = np.random.default_rng(23)
    cache = make_cache(rng, [160])
    memory = np.full((20, locks_cpp.page_bytes("paper", 64, 2, False)), 0xA5, np.uint8)
    summaries = locks_cpp.Summaries(memory, format="paper", head_dim=64, kv_heads=2, values=False)
    assert summaries.num_pages == 20
    report = locks_cpp.summarize(cache.keys, None, np.array([3, 7], np.int32), summaries)
    assert report.records == 4
    written = np.flatnonzero(np.any(memory != 0xA5, axis=1))
    assert written.tolist() == [3, 7]
    assert locks_cpp.summarize(cache.keys, None, np.empty(0, np.int32), summaries).records == 0


def test_a_page_that_is_not_finite_is_counted_and_always_attended():
    rng = np.random.default_rng(24)
    cache = make_cache(rng, [2000], heads=2)
    cache.values[cache.tables[0][30], 3, 1, 5] = np.inf
    _, summaries, report = make_summaries(cache, CONFIG)
    assert report.not_finite_records == 1
    out, _ = step(make_plan(cache, CONFIG), cache, summaries, make_queries(rng, cache))
    assert np.all(np.isinf(out[0, 3:, 5])) and np.all(np.isfinite(out[0, :3]))


def test_no_pages():
    keys = np.empty((0, 16, 2, 64), np.float16)
    memory = np.empty((0, locks_cpp.page_bytes("graded8", 64, 2, True)), np.uint8)
    summaries = locks_cpp.Summaries(memory, format="graded8", head_dim=64, kv_heads=2, values=True)
    assert summaries.num_pages == 0
    assert locks_cpp.summarize(keys, keys, np.empty(0, np.int32), summaries).records == 0
    with pytest.raises(ValueError, match=r"pages\[0\]: expected no page"):
        locks_cpp.summarize(keys, keys, np.zeros(1, np.int32), summaries)
