"""A model of which every second layer slides: those stay with the host, the others are taken."""

import numpy as np
import pytest

import make_gguf
import steps
from llama_host import FLASH_OFF
from session import Session

LAYERS, WINDOW, PROMPT, STEPS = 4, 256, 1500, 12
WHOLE = LAYERS // 2  # layers that see everything
CHUNKS = 3  # of the prompt


@pytest.fixture(scope="module")
def sliding_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "sliding.gguf"
    shape = make_gguf.Shape(
        layers=LAYERS,
        hidden=256,
        query_heads=4,
        kv_heads=2,
        feed_forward=512,
        vocabulary=256,
        context=4096,
        full_precision=True,
        sliding_window=WINDOW,
    )
    make_gguf.write(path, shape)
    return path


def read_and_step(state, options):
    """Logits behind a prompt and behind each of some tokens."""
    tokens = np.random.default_rng(1).integers(0, 256, PROMPT + STEPS)
    context = steps.make(state, "sliding", len(tokens) + 8, **options)
    logits = [context.read(tokens[:PROMPT]), *context.steps(tokens[PROMPT:], PROMPT)]
    state.close("sliding")
    return np.array(logits)


# llama.cpp's programs give sliding layers a small cache of their own. With --swa-full, and in a program that keeps the
# library's defaults, all caches are of one size.
@pytest.mark.parametrize("swa_full", [False, True])
def test_layers_that_slide_stay_with_the_host(plugin, sliding_model, swa_full):
    with Session(model_path=sliding_model) as stock:
        expected = stock.run(read_and_step, {"swa_full": swa_full, "flash": FLASH_OFF})
        hosts_own = np.abs(stock.run(read_and_step, {"swa_full": swa_full}) - expected).max()
    found = {}
    for budget in (1000000, 256):
        with Session(plugin, {"report": 0, "budget_tokens": budget}, model_path=sliding_model) as locks:
            found[budget], counted = locks.run(steps.counted, read_and_step, {"swa_full": swa_full})
        assert counted["layers"] == WHOLE
        assert counted["decode_calls"] == WHOLE * STEPS and counted["prefill_calls"] == WHOLE * CHUNKS
        # In a cache of full size the window shows in the first chunk's mask, which is then attended as it says.
        assert counted["exact_calls"] == (LAYERS - WHOLE if swa_full else 0)
        assert counted["declined"].keys() == {"sliding_window"}
        assert counted["sparse_requests"] == (WHOLE * STEPS if budget == 256 else 0)
    # Half as far again as flash attention's rounding moves the host itself; what is sparse is much farther away.
    np.testing.assert_allclose(found[1000000], expected, atol=1.5 * hosts_own)
    assert np.abs(found[256] - expected).max() > 10 * hosts_own
