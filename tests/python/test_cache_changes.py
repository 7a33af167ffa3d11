"""Summaries are never stale: whatever happens to the cache, the next steps are those of a context that never saw what
was there.
"""

import numpy as np
import pytest

import kl
import steps

# The same cells, summaries and thread shares give the same bits; the real model makes tenths of any difference.
ATOL = 1e-3
# Shares that are split differently round differently, which this model turns into 0.003 to 0.01 (test_exactness.py).
ROUNDING = 0.03


def test_a_reused_prompt(selected, short_prose, short_code):
    text = short_prose
    for keep in (1536, 1543):
        changed, fresh = selected.run(
            steps.against_fresh, steps.reuse_prompt, text.cache, text.start, text.next(20), keep, short_code.tokens[:300]
        )
        np.testing.assert_allclose(changed, fresh, atol=ATOL)


@pytest.mark.parametrize("change", [steps.clear_and_restore, steps.restore_over])
def test_another_text_in_the_same_cells(selected, short_prose, short_code, change):
    a, b = short_prose, short_code
    changed, fresh = selected.run(steps.against_fresh, change, a.cache, a.start, a.next(20), b.cache, b.start, b.next(8))
    np.testing.assert_allclose(changed, fresh, atol=ATOL)


def test_a_saved_and_restored_cache(selected, short_prose):
    text = short_prose
    changed, fresh = selected.run(steps.against_fresh, steps.restore_twice, text.cache, text.start, text.next(20))
    np.testing.assert_allclose(changed, fresh, atol=ATOL)


def test_a_context_shift(selected, everything, stock, short_prose):
    # Keys are rotated in place and new tokens go into the freed cells. 512 of 2,048 tokens go.
    text = short_prose
    arguments = (steps.shifted, text.cache, text.start, 256, 512, text.next(24))
    exact = everything.run(*arguments)
    assert kl.divergence(stock.run(*arguments), exact).mean() < ROUNDING
    sparse, counted = selected.run(steps.counted, *arguments)
    # Seen when it happened, not found out afterwards.
    assert counted["stale_events"] > 0 and counted["canary_hits"] == 0
    assert counted["calls_declined"] == 0
    unshifted = everything.run(kl.forced_steps, text.cache, text.next(24), text.start)
    usual = kl.divergence(unshifted, selected.run(kl.forced_steps, text.cache, text.next(24), text.start)).mean()
    assert kl.divergence(exact, sparse).mean() < 2 * usual


def test_two_contexts_in_turn(selected, short_prose, short_code):
    a, b = short_prose, short_code
    rows = selected.run(steps.alternate, a.cache, a.start, a.next(8), b.cache, b.start, b.next(8))
    for text, logits in zip((a, b), rows):
        np.testing.assert_allclose(logits, selected.run(kl.forced_steps, text.cache, text.next(8), text.start), atol=ATOL)


@pytest.mark.parametrize("unified", [False, True])
def test_two_slots_at_once(selected, short_prose, short_code, unified):
    a, b = short_prose, short_code
    rows, counted = selected.run(
        steps.counted, steps.two_slots, unified, a.cache, a.start, a.next(24), b.cache, b.start, b.next(24)
    )
    assert counted["calls_declined"] == 0 and counted["exact_calls"] == 0
    assert counted["requests"] == 2 * 24 * 30
    for text, logits in zip((a, b), rows):
        alone = selected.run(kl.forced_steps, text.cache, text.next(24), text.start)
        # Two requests divide otherwise over the threads than one: the first rounding that the model amplifies parts them.
        np.testing.assert_allclose(logits[:2], alone[:2], atol=ATOL)
        assert kl.divergence(alone, logits).mean() < ROUNDING


@pytest.mark.parametrize("unified", [False, True])
def test_a_copied_sequence(selected, short_prose, short_code, unified):
    text = short_prose
    tokens = text.next(20), short_code.tokens[:20]
    rows, counted = selected.run(steps.counted, steps.copied_sequence, unified, text.cache, text.start, *tokens)
    assert counted["calls_declined"] == 0
    for expected, logits in zip(tokens, rows):
        alone = selected.run(kl.forced_steps, text.cache, expected, text.start)
        assert kl.divergence(alone, logits).mean() < ROUNDING
