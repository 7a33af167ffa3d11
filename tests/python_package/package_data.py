"""Caches in the layouts that engines use, and attention by its formula in float64."""

from dataclasses import dataclass

import numpy as np
from built_package import locks_cpp

EPS = 2.0**-24  # half a unit in the last place of a float32
LAYOUTS = ("tokens", "key_value_blocks", "split_heads")


def strided(layout, keys, values):
    """The same keys and values [blocks, block_tokens, heads, d], as views of one buffer."""
    blocks, tokens, heads, d = keys.shape
    if layout == "key_value_blocks":
        buffer = np.empty((blocks, 2, tokens, heads, d), keys.dtype)
        views = buffer[:, 0], buffer[:, 1]
    elif layout == "split_heads":
        buffer = np.empty((blocks, heads, tokens, 2 * d), keys.dtype).transpose(0, 2, 1, 3)
        views = buffer[..., :d], buffer[..., d:]
    else:
        buffer = np.empty((2, *keys.shape), keys.dtype)
        views = buffer[0], buffer[1]
    views[0][...], views[1][...] = keys, values
    return views


@dataclass
class Cache:
    """`tables[r]` are the blocks of request r, in a shuffled order, no block twice."""

    keys: np.ndarray
    values: np.ndarray
    tables: np.ndarray
    tokens: np.ndarray

    def of(self, request, count=None):
        """The request's keys and values [tokens, heads, d] in float64, without paging."""
        count = self.tokens[request] if count is None else count
        flat = (array[self.tables[request]].reshape(-1, *array.shape[2:])[:count] for array in (self.keys, self.values))
        return [part.astype(np.float64) for part in flat]


def make_cache(rng, tokens, *, heads=2, d=64, block_tokens=16, dtype=np.float16, layout="tokens", draw=None):
    tokens = np.asarray(tokens, np.int32)
    width = max(1, -(-int(tokens.max(initial=0)) // block_tokens))
    blocks = width * max(1, len(tokens)) + 1
    draw = draw or (lambda shape: (rng.standard_normal(shape), rng.standard_normal(shape)))
    keys, values = (part.astype(dtype) for part in draw((blocks, block_tokens, heads, d)))
    tables = rng.permutation(blocks)[: width * len(tokens)].reshape(len(tokens), width).astype(np.int32)
    return Cache(*strided(layout, keys, values), tables, tokens)


def relative_error(queries, keys, scale):
    """[heads]: how far attention over [tokens, kv_heads, d] in float may be off, as a part of the values' mean size.

    A logit is off by at most (d + 6) eps sum |q k|, its exponential relatively by that, 4 eps of the largest logit and 2e-7;
    a sum over n tokens adds (n / 16 + 24) eps, and the quotient of two sums has all that twice.
    """
    d = queries.shape[1]
    own_keys = np.repeat(np.abs(keys), len(queries) // keys.shape[1], axis=1)
    largest = np.einsum("hd,nhd->nh", np.abs(queries.astype(np.float64)), own_keys).max(axis=0) * scale
    return 2 * ((d + 10) * EPS * largest + 2e-7 + (len(keys) / 16 + 24) * EPS)


def attention(queries, keys, values, scale):
    """[heads, d] over [tokens, kv_heads, d]: the output, and how far float arithmetic may be off."""
    if not len(keys):
        return np.zeros(queries.shape), np.zeros(queries.shape)
    group = len(queries) // keys.shape[1]
    keys_of, values_of = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    logits = np.einsum("hd,nhd->nh", queries.astype(np.float64), keys_of) * scale
    weights = np.exp(logits - logits.max(axis=0))
    weights /= weights.sum(axis=0)
    out = np.einsum("nh,nhd->hd", weights, values_of)
    return out, relative_error(queries, keys, scale)[:, None] * np.einsum("nh,nhd->hd", weights, np.abs(values_of))


def make_summaries(cache, config, *, pool=None, extra_bytes=0):
    """Of every page of the cache."""
    blocks, block_tokens, heads, d = cache.keys.shape
    pages = blocks * block_tokens // locks_cpp.PAGE_TOKENS
    row = locks_cpp.page_bytes(config.format, d, heads, config.keeps_values)
    memory = np.full((pages, row + extra_bytes), 0xA5, np.uint8)
    summaries = locks_cpp.Summaries(memory, format=config.format, head_dim=d, kv_heads=heads, values=config.keeps_values)
    values = cache.values if config.keeps_values else None
    report = locks_cpp.summarize(cache.keys, values, np.arange(pages, dtype=np.int32), summaries, pool=pool)
    return memory, summaries, report


def make_plan(cache, config, *, group=3, pool=None, max_requests=4, max_context_tokens=8192):
    heads, d = cache.keys.shape[2:]
    return locks_cpp.DecodePlan(
        config,
        query_heads=group * heads,
        kv_heads=heads,
        head_dim=d,
        softmax_scale=d**-0.5,
        max_requests=max_requests,
        max_context_tokens=max_context_tokens,
        pool=pool,
    )


def make_queries(rng, cache, group=3, count=None):
    heads, d = cache.keys.shape[2:]
    return rng.standard_normal((len(cache.tokens) if count is None else count, group * heads, d)).astype(np.float32)


def step(plan, cache, summaries, queries):
    out = np.full_like(queries, np.nan)
    report = plan.run(queries, cache.keys, cache.values, summaries, cache.tables, cache.tokens, out)
    return out, report
