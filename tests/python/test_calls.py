"""Every attention node of the model is taken, and counted."""

import numpy as np

import kl
import steps
from llama_host import TYPE_Q8_0
from session import Session


def test_each_layer_of_each_step_is_one_call(selected, short_prose):
    text = short_prose
    _, counted = selected.run(
        steps.counted, steps.continue_and_read, text.cache, text.start, text.next(5), text.tokens[:600]
    )
    layers, single_steps, chunks = 30, 5 + 1, 2
    assert counted["layers"] == layers
    assert counted["decode_calls"] == layers * single_steps
    assert counted["decode_steps"] == single_steps
    assert counted["prefill_calls"] == layers * chunks
    assert counted["calls_declined"] == 0 and counted["exact_calls"] == 0
    assert counted["sparse_requests"] == layers * single_steps


def test_only_what_the_budget_allows_is_attended(selected, short_prose):
    text = short_prose
    _, counted = selected.run(steps.counted, kl.forced_steps, text.cache, text.next(16), text.start)
    assert 140 <= counted["attended_tokens"] <= kl.with_selected(64)["budget_tokens"]
    assert counted["score_bytes"] + counted["attend_bytes"] + counted["complete_bytes"] < counted["dense_bytes"] / 3
    assert 0.5 < counted["coverage"] < 1
    # 16-bit keys and values of 3 heads of 64, a token and layer.
    assert counted["dense_bytes"] == 2 * 3 * 64 * 2 * 30 * sum(text.start + 1 + i for i in range(16))


def test_every_filled_page_is_summarised_once_per_layer(selected, short_prose):
    text = short_prose
    _, counted = selected.run(steps.counted, kl.forced_steps, text.cache, text.next(16), text.start)
    pages = text.start // 16
    assert counted["restored_pages"] == 30 * pages
    assert counted["summarized_pages"] == 30 * (pages + 1)
    assert counted["not_finite_records"] == 0


def test_prompts_are_left_to_the_host_where_that_is_asked_for(plugin, stock, short_prose):
    tokens = short_prose.tokens[:200]
    with Session(plugin, {"prefill": "off", "report": 0}) as session:
        (logits, _), counted = session.run(steps.counted, steps.read, tokens)
    assert counted["prefill_calls"] == 0
    expected, _ = stock.run(steps.read, tokens)
    np.testing.assert_array_equal(logits, expected)


def test_the_evaluation_callback_takes_the_same_calls(plugin, selected, short_prose):
    text = short_prose
    expected = selected.run(kl.forced_steps, text.cache, text.next(4), text.start)
    with Session() as session:
        logits, counted = session.run(with_callback, str(plugin), text.cache, text.next(4), text.start)
    assert counted["decode_calls"] == 4 * 30 and counted["calls_declined"] == 0
    np.testing.assert_allclose(logits, expected, atol=1e-3)


def with_callback(state, plugin, cache, tokens, start):
    import ctypes
    import json
    import os

    os.environ.update(LOCKS_BUDGET_TOKENS=str(kl.with_selected(64)["budget_tokens"]), LOCKS_REPORT="0")
    library = ctypes.CDLL(plugin)
    logits = kl.forced_steps(state, cache, tokens, start, eval_callback=library.locks_cb_eval)
    buffer = ctypes.create_string_buffer(1 << 16)
    library.locks_llamacpp_statistics(buffer, ctypes.c_size_t(len(buffer)))
    return logits, json.loads(buffer.value)


def test_a_q8_0_cache_is_taken_too(selected, dense, short_prose):
    text = short_prose
    tokens, after = text.tokens[:1536], text.tokens[1536:1552]
    (_, cache), counted = selected.run(steps.counted, read_q8_0, tokens)
    assert counted["calls_declined"] == 0 and counted["prefill_calls"] == 3 * 30
    sparse, counted = selected.run(steps.counted, forced_q8_0, cache, after, len(tokens))
    assert counted["calls_declined"] == 0 and counted["sparse_requests"] == 16 * 30
    exact = dense.run(forced_q8_0, cache, after, len(tokens))
    assert kl.divergence(exact, sparse).mean() < 0.05


def read_q8_0(state, tokens):
    return steps.read(state, tokens, cache_type=TYPE_Q8_0)


def forced_q8_0(state, cache, tokens, start):
    return kl.forced_steps(state, cache, tokens, start, cache_type=TYPE_Q8_0)
