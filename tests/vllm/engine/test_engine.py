"""The same prompts under everything that vLLM does to blocks and batches.

EVERYTHING attends to all tokens: the tokens must be stock vLLM's. SPARSE selects, and debug_check compares every summary
that a step may read with a fresh one of its page, at every step and layer, and raises if they differ.
"""

import sys

import pytest
import runs

EVERYTHING = {"budget_tokens": 4096, "min_context_tokens": 0, "debug_check": True}
SPARSE = {"budget_tokens": 320, "min_context_tokens": 256, "debug_check": True}

SPECULATION = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
# The long requests take 22 and 29 blocks of 32 tokens for their prompts, and 2 more each until their ends.
ENGINES = {
    "plain": {},
    "odd chunks": {"max_num_batched_tokens": 37},
    "prefix cache": {"enable_prefix_caching": True, "block_size": 32, "rounds": 2, "num_gpu_blocks_override": 90},
    "few blocks": {"block_size": 32, "num_gpu_blocks_override": 34, "max_num_seqs": 2},
    "preemption": {"block_size": 32, "num_gpu_blocks_override": 54, "max_num_batched_tokens": 2048},
    "speculation": {"speculative_config": SPECULATION},
}


def test_without_settings_vllm_is_stock(stock):
    assert {layer[:2] for layer in stock.layers.values()} == {("Attention", "CPUAttentionBackendImpl")}
    assert stock.stats == {}
    assert "locks_cpp.vllm.impl" not in sys.modules and "locks_cpp.vllm.store" not in sys.modules


@pytest.fixture(scope="module")
def results():
    return {}


def result_of(results, checkpoint, name, locks):
    key = name, locks["budget_tokens"]
    if key not in results:
        try:
            results[key] = runs.run(checkpoint, locks, **ENGINES[name])
        except RuntimeError as error:
            skip_if_stock_fails_so(checkpoint, name, str(error))
            raise
    return results[key]


def skip_if_stock_fails_so(checkpoint, name, failure):
    """vLLM 0.30 without Triton cannot speculate."""
    if name != "speculation":
        return
    try:
        runs.run(checkpoint, None, **ENGINES[name])
    except RuntimeError as error:
        if str(error) == failure:
            pytest.skip(f"{name}: this vLLM fails without LOCKS too: {failure}")


@pytest.mark.parametrize("name", ENGINES)
def test_a_budget_of_everything_gives_the_stock_tokens(stock, checkpoint, results, name):
    result = result_of(results, checkpoint, name, EVERYTHING)
    assert result.tokens == stock.tokens
    assert result.stats["rows_sparse"] == result.stats["rows_dense_short"] == 0
    assert result.stats["rows_dense_budget"] > 0 and result.stats["pages_checked"] > 0


@pytest.mark.parametrize("name", ENGINES)
def test_sparse_is_sparse_and_near(stock, checkpoint, results, name):
    plain = result_of(results, checkpoint, "plain", SPARSE)
    result = result_of(results, checkpoint, name, SPARSE)
    stats = result.stats
    assert stats["rows_sparse"] > 200 and stats["rows_dense_short"] > 200 and stats["pages_checked"] > 1000
    assert stats["attended_share"] < 0.5 and stats["coverage"] > 0.95
    assert runs.drift(result, stock, 0) < 1e-3  # prompts are exact
    assert 1e-3 < runs.drift(result, stock, 1) < 0.8  # random keys have no structure to summarise
    # What is sparse depends on the request alone, not on its blocks, its batch, or how its prompt was cut ...
    assert runs.drift(result, plain, 1) < 1e-3
    if name != "preemption":  # ... but for tokens that a resumed request computes again, as a prompt
        assert result.tokens == plain.tokens
    # Requests whose contexts stay short are attended exactly, beside whatever else is in the batch.
    assert result.tokens[3:] == stock.tokens[3:]


@pytest.mark.parametrize("locks", [EVERYTHING, SPARSE], ids=["everything", "sparse"])
def test_the_engines_did_what_their_names_say(checkpoint, results, locks):
    def metric(name, of):
        return result_of(results, checkpoint, name, locks).vllm_metrics[of]

    assert metric("plain", "vllm:num_preemptions") == 0
    assert metric("preemption", "vllm:num_preemptions") > 0
    assert metric("prefix cache", "vllm:prefix_cache_hits") > 1000
    blocks = ENGINES["few blocks"]["num_gpu_blocks_override"]
    assert sum(map(len, runs.prompts())) > 2 * 32 * blocks  # so every block has had several owners
    drafted, accepted = (metric("speculation", f"vllm:spec_decode_num_{which}_tokens") for which in ("draft", "accepted"))
    assert 0 < accepted < drafted


def test_summaries_are_in_vllms_own_memory(stock, checkpoint, results):
    """Of the same bytes, as many fewer blocks as the summaries take; a store's pages are its layer's."""
    plain = result_of(results, checkpoint, "plain", SPARSE)
    stores = [layer for name, layer in plain.layers.items() if name.startswith("locks_summaries.")]
    layers = [layer for name, layer in plain.layers.items() if not name.startswith("locks_summaries.")]
    assert [kind for kind, *_ in stores] == ["SummaryStore"] * 2 and [impl for _, impl, *_ in layers] == ["CpuImpl"] * 2
    (store_shape,), (layer_shape,) = {store[2] for store in stores}, {layer[2] for layer in layers}
    assert all(layer[4] for layer in plain.layers.values())  # written there, not to a copy
    blocks = plain.num_blocks
    assert store_shape[0] == layer_shape[0] == blocks * 128 // 16
    page_bytes, store_bytes = 2 * 2 * 16 * 64 * 4, store_shape[-1] * 4
    assert blocks == stock.num_blocks * page_bytes // (page_bytes + store_bytes)


def test_bfloat16(checkpoint):
    """Queries, cache and output are bfloat16 then; the library computes in float32."""
    stock, everything, sparse = (runs.run(checkpoint, locks, dtype="bfloat16") for locks in (None, EVERYTHING, SPARSE))
    assert {layer[3] for layer in sparse.layers.values()} == {"torch.bfloat16"}
    assert everything.stats["pages_checked"] > 0 and sparse.stats["rows_sparse"] > 0
    for position in (0, 1):
        assert runs.drift(everything, stock, position) < 0.1
    assert runs.drift(sparse, stock, 0) < 0.1 and 0.01 < runs.drift(sparse, stock, 1) < 0.8


@pytest.mark.parametrize(
    "settings", [{"dtype": "float16"}, {"kv_cache_dtype": "bfloat16"}], ids=["float16", "bfloat16 cache"]
)
def test_other_types(stock, checkpoint, settings):
    """Against stock vLLM in float32."""
    sparse = runs.run(checkpoint, SPARSE, **settings)
    (cache_type,) = {layer[3] for layer in sparse.layers.values()}
    assert cache_type == f"torch.{next(iter(settings.values()))}"
    assert sparse.stats["pages_checked"] > 0 and sparse.stats["rows_sparse"] > 0
    assert runs.drift(sparse, stock, 0) < 0.1 and 0.01 < runs.drift(sparse, stock, 1) < 0.8
