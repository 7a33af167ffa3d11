"""Where everything is attended the result is dense attention's."""

import numpy as np
import pytest

import kl
import steps
from llama_host import FLASH_AUTO, FLASH_OFF
from session import Session


def test_a_budget_of_everything_is_dense_attention(everything, dense, prose):
    expected = dense.run(kl.forced_steps, prose.cache, prose.next(8), prose.start)
    logits, counted = everything.run(steps.counted, kl.forced_steps, prose.cache, prose.next(8), prose.start)
    assert counted["attended_tokens"] == counted["context_tokens"] == prose.start + 4.5
    np.testing.assert_allclose(logits, expected, atol=1e-3)


@pytest.mark.parametrize("tokens", [1, 17, 511, 1500])
def test_dense_attention_is_the_hosts(plugin, small_model, tokens):
    # The host without flash attention rounds queries and weights to half precision, with it the sums as well.
    prompt = np.random.default_rng(tokens).integers(0, 256, tokens + 8)
    arguments = (read_and_step, prompt[:tokens], prompt[tokens:])
    with Session(model_path=small_model) as stock:
        expected = stock.run(*arguments, FLASH_OFF)
    for settings in ({"selector": "dense"}, {"budget_tokens": 1000000}):
        with Session(plugin, {"report": 0, **settings}, model_path=small_model) as locks:
            logits, counted = locks.run(steps.counted, *arguments)
        assert (
            counted["calls_declined"] == 0 and counted["prefill_calls"] + counted["decode_calls"] == counted["calls_taken"]
        )
        np.testing.assert_allclose(logits, expected, atol=4e-3)


def test_the_real_models_distribution_is_the_hosts_up_to_rounding(dense, stock, short_prose):
    # Its quantised products make 0.003 to 0.01 of any rounding difference, the host's own with and without flash
    # attention included.
    text = short_prose
    expected = stock.run(kl.forced_steps, text.cache, text.next(8), text.start)
    logits = dense.run(kl.forced_steps, text.cache, text.next(8), text.start)
    assert kl.divergence(expected, logits).mean() < 0.02


def test_short_contexts_are_dense(selected, dense, short_prose):
    # Below 1,024 tokens, the last of which is the last dense step.
    text, start = short_prose, 1000
    logits, counted = selected.run(steps.counted, read_and_step, text.tokens[:start], text.tokens[start : start + 40])
    expected = dense.run(read_and_step, text.tokens[:start], text.tokens[start : start + 40])
    dense_steps = 1024 - start - 1
    np.testing.assert_array_equal(logits[: 1 + dense_steps], expected[: 1 + dense_steps])
    assert counted["sparse_requests"] == 30 * (40 - dense_steps)
    assert kl.divergence(expected, logits)[1 + dense_steps :].min() > 0


def read_and_step(state, prompt, tokens, flash=FLASH_AUTO):
    """Logits behind the prompt and behind each token."""
    context = steps.make(state, "short", len(prompt) + len(tokens) + 8, flash=flash)
    logits = [context.read(prompt), *context.steps(tokens, len(prompt))]
    state.close("short")
    return np.array(logits)
