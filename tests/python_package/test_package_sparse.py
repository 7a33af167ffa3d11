"""Contexts beyond the budget: what is attended, what stands in for the rest, and what the reports say."""

import numpy as np
import pytest
from built_package import locks_cpp
from package_data import attention, make_cache, make_plan, make_queries, make_summaries, step

PAGE = locks_cpp.PAGE_TOKENS
NEEDLES = (5, 40, 41, 100)  # pages of the request


def needles_in_hay(rng, needles=NEEDLES, gap=1.0):
    """One request of 2,050 tokens whose keys point along one axis in the needles and against it elsewhere."""
    cache = make_cache(rng, [2050], heads=1, block_tokens=32)
    pages = cache.keys.reshape(-1, PAGE, 1, 64)
    pages[...] = (0.05 * rng.standard_normal(pages.shape)).astype(np.float16)
    pages[..., 0] -= gap
    in_cache = (cache.tables[0][:, None] * 2 + np.arange(2)).ravel()
    pages[in_cache[list(needles)], ..., 0] += 2 * gap
    cache.keys[...] = pages.reshape(cache.keys.shape)
    queries = np.zeros((1, 3, 64), np.float32)
    queries[..., 0] = 80.0  # times keys of +-1, times 1/8: logits of +-10
    return cache, queries


@pytest.mark.parametrize("format_name", locks_cpp.formats())
def test_whole_pages_are_the_best_ones(format_name):
    """The attended set is known: the sink page, the needles, 4 recent pages and 2 tokens. Out comes attention over it."""
    rng = np.random.default_rng(11)
    budget = PAGE + len(NEEDLES) * PAGE + 4 * PAGE + 2
    config = locks_cpp.Config(format=format_name, budget_tokens=budget, part_tokens=16, completion_fraction=0.0)
    cache, queries = needles_in_hay(rng)
    _, summaries, _ = make_summaries(cache, config)
    out, report = step(make_plan(cache, config), cache, summaries, queries)

    assert report.attended_tokens[0] == budget
    attended = [0, *NEEDLES, *range(2050 // PAGE - 4, 2050 // PAGE + 1)]
    tokens = (np.array(attended)[:, None] * PAGE + np.arange(PAGE)).ravel()
    tokens = tokens[tokens < 2050]
    keys, values = cache.of(0)
    want, bound = attention(queries[0], keys[tokens], values[tokens], 0.125)
    assert np.all(np.abs(out[0] - want) <= bound)


@pytest.mark.parametrize("combine", ["sum", "max", "per_query_head"])
def test_skipping_what_weighs_nothing_changes_nothing(combine):
    """A logit is 10 in the needles and -10 elsewhere, and varies by 0.5: 4 either way is never met."""
    rng = np.random.default_rng(12)
    config = locks_cpp.Config(budget_tokens=256, combine=combine)
    cache, queries = needles_in_hay(rng)
    _, summaries, _ = make_summaries(cache, config)
    out, report = step(make_plan(cache, config), cache, summaries, queries)
    want, bound = attention(queries[0], *cache.of(0), 0.125)
    skipped = 2050 / (len(NEEDLES) * PAGE) * np.exp(-20.0 + 8.0)  # of the mass, at most
    assert np.all(np.abs(out[0] - want) <= bound + 2 * skipped * np.abs(cache.values).max())
    assert report.coverage[0] == pytest.approx(1.0, abs=1e-3)
    assert report.attended_tokens[0] <= 256


def pages_on_lines(shape):
    """Keys and values of a page lie on a line each, which the summaries hold well."""
    rng = np.random.default_rng(13)
    blocks, tokens, heads, d = shape
    along = rng.standard_normal((blocks, tokens, heads, 1))
    centre, slope = (rng.standard_normal((2, blocks, 1, heads, d)) for _ in range(2))
    return 2.0 * centre[0] + 0.5 * along * slope[0], centre[1] + along * slope[1]


def test_completion_stands_in_for_what_is_skipped():
    """Two fifths of the mass are skipped. Left out they are most of the error; completed, a few percent of it are left."""
    cache = make_cache(np.random.default_rng(14), [4096, 4000], draw=pages_on_lines)
    queries = make_queries(np.random.default_rng(15), cache)
    want = np.array([attention(queries[i], *cache.of(i), 0.125)[0] for i in range(2)])
    errors = {}
    for fraction in (0.0, 0.5):
        config = locks_cpp.Config(completion_fraction=fraction, budget_tokens=512)
        _, summaries, _ = make_summaries(cache, config)
        out, report = step(make_plan(cache, config), cache, summaries, queries)
        errors[fraction] = np.linalg.norm(out - want) / np.linalg.norm(want)
        assert np.all(report.coverage < 0.7) and np.all(report.coverage > 0.5)
        assert np.all(report.attended_tokens <= 512) and not np.any(report.dense)
        assert np.all((report.completed_pages > 0) == (fraction > 0))
        assert np.all((report.complete_bytes > 0) == (fraction > 0))
        assert np.all(report.score_bytes > 0) and np.all(report.attend_bytes < report.dense_bytes / 7)
    assert errors[0.0] > 0.5 and errors[0.5] < 0.1


def test_the_paper_method():
    rng = np.random.default_rng(15)
    config = locks_cpp.Config.paper()
    assert (config.format, config.budget_tokens, config.part_tokens, config.keeps_values) == ("paper", 2048, 16, False)
    cache = make_cache(rng, [5000])
    _, summaries, _ = make_summaries(cache, config)
    _, report = step(make_plan(cache, config), cache, summaries, make_queries(rng, cache))
    assert 2048 - PAGE <= report.attended_tokens[0] <= 2048
    assert report.completed_pages[0] == 0 and report.complete_bytes[0] == 0


def test_one_step_serves_short_and_long_requests():
    rng = np.random.default_rng(16)
    config = locks_cpp.Config()
    cache = make_cache(rng, [4096, 3, 0, 1023])
    _, summaries, _ = make_summaries(cache, config)
    queries = make_queries(rng, cache)
    out, report = step(make_plan(cache, config), cache, summaries, queries)
    assert report.dense.tolist() == [False, True, True, True]
    for request in (1, 2, 3):
        want, bound = attention(queries[request], *cache.of(request), 0.125)
        assert np.all(np.abs(out[request] - want) <= bound)
