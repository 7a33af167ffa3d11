"""A trace of made-up numbers."""

import numpy as np

from attention_trace import BYTES, Layer, Step, Trace

PLUGIN_MASSES = ("true_mass", "covered_mass", "estimated_mass")
LIBRARY_MASSES = ("true_mass", "covered_mass", "attended_mass", "completed_mass")


def made_layer(random, layer, lists, tokens, masses=PLUGIN_MASSES):
    pages = -(-tokens // 16)
    shares = {name: (random.random((lists, pages)) / pages).astype(np.float16) for name in masses}
    attended, other = random.integers(0, 1 << 16, (2, lists, pages)).astype(np.uint16)
    completed = other & ~attended
    for bits in (attended, completed):
        bits[:, -1] &= (1 << (tokens - 16 * (pages - 1))) - 1
    return Layer(layer, False, dict.fromkeys(BYTES, 7), shares, attended, completed)


def made(layers=2, lists=3, tokens=35, steps=1, text="word ", masses=PLUGIN_MASSES):
    """Each step sees one token more; `text` None: without texts."""
    random = np.random.default_rng(5)
    all_steps = [
        Step(i, 0, 0, 1, tokens + i, [made_layer(random, layer, lists, tokens + i, masses) for layer in range(layers)])
        for i in range(steps)
    ]
    texts = None if text is None else [f"{text}{i}" for i in range(tokens + steps)]
    return Trace("a model", {"budget_tokens": 9}, list(masses), all_steps, texts)
