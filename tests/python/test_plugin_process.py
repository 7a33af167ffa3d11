"""How the plug-in starts, refuses and ends: the host is never brought down."""

import json

import numpy as np
import pytest

import steps
from session import Session

PROMPT = np.arange(40) % 256


def test_statistics_are_written_at_exit(plugin, small_model, tmp_path):
    path = tmp_path / "statistics.json"
    session = Session(plugin, {"report": 0, "stats": path}, model_path=small_model)
    session.run(steps.read, PROMPT)
    assert session.close() == 0
    written = json.loads(path.read_text())
    assert written["prefill_calls"] == 2 and written["layers"] == 2


def test_a_statistics_file_that_cannot_be_written_does_not_matter(plugin, small_model, tmp_path, capfd):
    session = Session(plugin, {"report": 0, "stats": tmp_path / "none" / "statistics.json"}, model_path=small_model)
    session.run(steps.read, PROMPT)
    assert session.close() == 0
    assert "cannot write the statistics to" in capfd.readouterr().err


def test_a_summary_at_exit_when_asked(plugin, small_model, capfd):
    session = Session(plugin, {"report": 1}, model_path=small_model)
    session.run(steps.read, PROMPT)
    assert session.close() == 0
    assert "attention calls in 2 layers" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget_token": 5}, "LOCKS_BUDGET_TOKEN is not a setting; known are"),
        ({"budget_tokens": "many"}, "LOCKS_BUDGET_TOKENS is 'many'; it may be a whole number"),
        ({"format": "graded9"}, "LOCKS_FORMAT"),
        ({"completion": 2}, "it may be a number from 0 (none) to 1"),
        ({"config": "/none.json"}, "cannot read /none.json"),
    ],
)
def test_wrong_settings_are_refused_and_the_host_goes_on(plugin, small_model, capfd, settings, message):
    with pytest.raises(RuntimeError, match="did not take"):
        Session(plugin, settings, model_path=small_model)
    assert message in capfd.readouterr().err
    with Session(model_path=small_model) as stock:
        expected, _ = stock.run(steps.read, PROMPT)
        # Refused once in this process, which then works as if it had not been asked.
        logits, _ = stock.run(read_after_refusal, str(plugin), settings)
    np.testing.assert_array_equal(logits, expected)


def read_after_refusal(state, plugin, settings):
    import locks_llamacpp

    with pytest.raises(RuntimeError):
        locks_llamacpp.enable(plugin, state.host.library, **settings)
    return steps.read(state, PROMPT)


def test_switched_off(plugin, small_model):
    with pytest.raises(RuntimeError, match="did not take"):
        Session(plugin, {"off": 1}, model_path=small_model)


def test_loaded_twice(plugin, small_model):
    with Session(plugin, {"report": 0}, model_path=small_model) as once, Session(
        plugin, {"report": 0}, model_path=small_model
    ) as twice:
        expected, counted = once.run(steps.counted, steps.read, PROMPT)
        twice.run(load_again, str(plugin))
        result, counted_twice = twice.run(steps.counted, steps.read, PROMPT)
    np.testing.assert_array_equal(result[0], expected[0])
    assert counted_twice["prefill_calls"] == counted["prefill_calls"] == 2


def load_again(state, plugin):
    import os
    import locks_llamacpp

    with pytest.raises(RuntimeError, match="already loaded"):
        locks_llamacpp.enable(plugin, state.host.library)
    state.host.library.ggml_backend_load(os.fsencode(plugin))


def test_settings_from_a_file(plugin, small_model, tmp_path):
    path = tmp_path / "locks.json"
    path.write_text('{"budget_tokens": 128, "min_context": 200, "report": "0"}')
    prompt = np.arange(400) % 256
    with Session(plugin, {"config": path}, model_path=small_model) as session:
        _, counted = session.run(
            steps.counted, steps.continue_and_read, session.run(steps.read, prompt)[1], 400, prompt[:4], prompt[:16]
        )
    assert counted["sparse_requests"] > 0 and counted["attended_tokens"] <= 128


@pytest.mark.parametrize("target", ["avx2", "scalar"])
def test_a_forced_target_gives_the_same_result(plugin, small_model, target, capfd):
    prompt = np.arange(1200) % 256
    with Session(plugin, {"budget_tokens": 128}, model_path=small_model) as best:
        cache = best.run(steps.read, prompt)[1]
        expected = best.run(steps.continue_and_read, cache, 1200, prompt[:4], prompt[:16])[0]
    capfd.readouterr()
    with Session(plugin, {"budget_tokens": 128, "cpu_target": target}, model_path=small_model) as forced:
        logits = forced.run(steps.continue_and_read, cache, 1200, prompt[:4], prompt[:16])[0]
    assert f", {target}:" in capfd.readouterr().err
    np.testing.assert_allclose(logits, expected, atol=2e-3)
