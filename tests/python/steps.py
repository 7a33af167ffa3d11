"""What the tests do inside a session's process: each function takes the session's state first."""

import numpy as np

import filled_cache
import kl
import locks_llamacpp

THREADS = 2


def tokenize(state, text):
    return state.model.tokenize(text)


def make(state, name, context_tokens, **options):
    return state.context(name, context_tokens=context_tokens, num_threads=THREADS, **options)


def cut(state, cache, tokens, keep):
    """The first `keep` tokens of a saved cache."""
    context = make(state, "cut", tokens + 64)
    context.restore(cache)
    context.remove(keep)
    kept = context.save()
    state.close("cut")
    return kept


def read(state, tokens, **options):
    """Reads a prompt into an empty context; its last token's logits, and the cache."""
    context = make(state, "read", len(tokens) + 64, **options)
    logits = context.read(tokens)
    cache = context.save()
    state.close("read")
    return logits, cache


def counted(state, function, *arguments):
    """What the function returns, and the plug-in's statistics of it alone."""
    locks_llamacpp.reset_statistics()
    result = function(state, *arguments)
    return result, locks_llamacpp.statistics()


def continue_and_read(state, cache, start, steps, prompt):
    """Single steps behind a restored cache, then a second prompt behind them; the logits of the steps, the prompt's and
    one more's."""
    context = make(state, "continued", start + len(steps) + len(prompt) + 64)
    context.restore(cache)
    stepped = context.steps(steps, start)
    read = context.read(prompt, start=start + len(steps))
    after = context.step(prompt[0], start + len(steps) + len(prompt))
    state.close("continued")
    return stepped, read, after


def against_fresh(state, change, *arguments, **options):
    """Runs `change(context, ...)`, which returns (next tokens, their position), then steps through these tokens. The same
    steps again in a new context that is given the saved cache: nothing that was kept of the first can mislead it."""
    capacity = 8192
    context = make(state, "changed", capacity, **options)
    tokens, position = change(context, *arguments)
    changed = context.steps(tokens, position)
    context.remove(position)
    cache = context.save()
    state.close("changed")
    return changed, kl.forced_steps(state, cache, tokens, position, THREADS, **options)


def reuse_prompt(context, cache, start, steps, keep, other):
    """A server's prompt reuse: the cache's first `keep` tokens stay, another text follows."""
    context.restore(cache)
    context.steps(steps, start)
    context.remove(keep)
    context.read(other[:-8], start=keep)
    return other[-8:], keep + len(other) - 8


def clear_and_restore(context, first, first_start, steps, second, second_start, next_tokens):
    """One text, then an emptied cache, then another text in the same cells."""
    context.restore(first)
    context.steps(steps, first_start)
    context.clear()
    context.restore(second)
    return next_tokens, second_start


def restore_over(context, first, first_start, steps, second, second_start, next_tokens):
    """A cache that is replaced without being emptied."""
    context.restore(first)
    context.steps(steps, first_start)
    context.restore(second)
    return next_tokens, second_start


def restore_twice(context, cache, start, steps):
    context.restore(cache)
    context.steps(steps, start)
    again = context.save()
    context.steps(steps, start + len(steps))
    context.restore(again)
    return steps, start + len(steps)


def shifted(state, cache, start, keep, discard, tokens):
    """A context shift: `discard` tokens behind the first `keep` go, the rest moves down; then steps."""
    context = make(state, "shifted", 4096)
    context.restore(cache)
    context.step(tokens[0], start)
    context.remove(start)
    context.remove(keep, keep + discard)
    context.shift(keep + discard, start, -discard)
    logits = context.steps(tokens, start - discard)
    state.close("shifted")
    return logits


def alternate(state, a, a_start, a_tokens, b, b_start, b_tokens):
    """Two contexts of one process, a step in turn."""
    first, second = make(state, "first", a_start + 128), make(state, "second", b_start + 128)
    first.restore(a)
    second.restore(b)
    rows = [], []
    for i, (x, y) in enumerate(zip(a_tokens, b_tokens)):
        rows[0].append(first.step(x, a_start + i))
        rows[1].append(second.step(y, b_start + i))
    state.close("first")
    state.close("second")
    return np.array(rows[0]), np.array(rows[1])


def two_slots(state, unified, a, a_start, a_tokens, b, b_start, b_tokens):
    """Two sequences of one context, both in every batch."""
    capacity = a_start + b_start + 256
    context = make(state, "slots", capacity if unified else 2 * capacity, num_sequences=2, unified=unified)
    streams = 1 if unified else 2
    context.restore(filled_cache.for_streams(a, streams), sequence=0)
    context.restore(filled_cache.for_streams(b, streams), sequence=1)
    rows = [
        context.decode([x, y], [a_start + i, b_start + i], [0, 1], [1, 1])
        for i, (x, y) in enumerate(zip(a_tokens, b_tokens))
    ]
    state.close("slots")
    rows = np.array(rows)
    return rows[:, 0], rows[:, 1]


def copied_sequence(state, unified, cache, start, a_tokens, b_tokens):
    """A sequence that is copied: both continue differently behind a shared prefix."""
    context = make(state, "copied", 2 * (start + 256), num_sequences=2, unified=unified)
    context.restore(filled_cache.for_streams(cache, 1 if unified else 2), sequence=0)
    context.steps(a_tokens[:2], start)
    context.remove(start)
    context.copy_sequence(0, 1)
    rows = [
        context.decode([x, y], [start + i, start + i], [0, 1], [1, 1]) for i, (x, y) in enumerate(zip(a_tokens, b_tokens))
    ]
    state.close("copied")
    rows = np.array(rows)
    return rows[:, 0], rows[:, 1]
