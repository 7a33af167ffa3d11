"""The trace that the plug-in writes: what is in it is what was done, in real runs."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "evals"))

import attended  # noqa: E402
import attention_trace  # noqa: E402
import capture  # noqa: E402
import locks_llamacpp  # noqa: E402
import steps  # noqa: E402
from attention_trace import BYTES  # noqa: E402
from checks import ConfigError  # noqa: E402
from session import Session  # noqa: E402

LAYERS, KV_HEADS, GROUP = 2, 2, 2  # of the small model
TOKENS = np.random.default_rng(1).integers(0, 256, 1200).astype(np.int32)
SPARSE = {"report": 0, "budget_tokens": 128}
HALF = 2.0**-11  # of a share in half precision


def answer(state, tokens, count):
    """Reads all tokens but the last, then that and the likeliest next ones; the logits of each step."""
    context = steps.make(state, "answer", len(tokens) + count + 64)
    context.read(tokens[:-1])
    locks_llamacpp.reset_statistics()
    rows, token = [], tokens[-1]
    for i in range(count):
        rows.append(context.step(token, len(tokens) - 1 + i))
        token = rows[-1].argmax()
    counted = locks_llamacpp.statistics()
    state.close("answer")
    return np.array(rows), counted


def traced(plugin, model, path, function, *arguments, **settings):
    with Session(plugin, {**SPARSE, "trace": path, **settings}, model_path=model) as session:
        result = session.run(function, *arguments)
    return result, attention_trace.load(path)


@pytest.fixture(scope="module")
def captured(small_model):
    """The same step of stock llama.cpp."""
    with Session(model_path=small_model) as session:
        return session.run(capture.read, TOKENS)


def exact_masses(captured, layer):
    """Of pages, the mean over each KV head's query heads, in NumPy."""
    shares = capture.attention(captured.queries[layer], captured.keys[layer], captured.scale)
    shares = np.pad(shares, ((0, 0), (0, -len(TOKENS) % 16)))
    return shares.reshape(KV_HEADS, GROUP, -1, 16).mean(1).sum(-1)


def test_every_step_and_layer_is_there_and_adds_up_to_the_statistics(plugin, small_model, tmp_path):
    (logits, counted), trace = traced(plugin, small_model, tmp_path / "x", answer, TOKENS, 9)
    assert [step.tokens for step in trace.steps] == [1200 + i for i in range(9)] and trace.left_out == 0
    assert all([layer.layer for layer in step.layers] == [0, 1] for step in trace.steps)
    assert {(step.row, step.cache, step.sequence) for step in trace.steps} == {(0, 0, trace.steps[0].sequence)}
    layers = [layer for step in trace.steps for layer in step.layers]
    for name in BYTES:
        assert sum(layer.bytes[name] for layer in layers) == counted[f"{name}_bytes"]
    attended_tokens = [np.unpackbits(layer.attended.view(np.uint8)).sum() / layer.lists for layer in layers]
    assert np.mean(attended_tokens) == pytest.approx(counted["attended_tokens"]) and max(attended_tokens) <= 128
    assert np.mean([(layer.completed > 0).sum(-1) for layer in layers]) == pytest.approx(counted["completed_pages"])
    assert trace.settings["budget_tokens"] == 128 and trace.settings["selector"] == "locks" and trace.tokens is None
    for layer in layers:
        assert layer.lists == KV_HEADS and not layer.whole
        for name in ("true_mass", "estimated_mass"):
            assert np.allclose(layer.masses[name].astype(float).sum(-1), 1, atol=2e-3)
    # Nothing that is computed depends on it.
    with Session(plugin, SPARSE, model_path=small_model) as session:
        np.testing.assert_array_equal(session.run(answer, TOKENS, 9)[0], logits)


def test_true_masses_are_those_of_exact_attention(plugin, small_model, captured, tmp_path):
    """The first layer's queries and keys are the same bits in stock llama.cpp and with any selector."""
    for settings in ({}, {"combine": "max"}, {"selector": "dense"}):
        _, trace = traced(plugin, small_model, tmp_path / "x", answer, TOKENS, 1, **settings)
        first = trace.steps[0].layers[0]
        assert np.allclose(first.masses["true_mass"], exact_masses(captured, 0), rtol=2 * HALF, atol=1e-6)
    # Of the second layer only where the first one was attended whole, and in stock llama.cpp with f16's errors.
    second = trace.steps[0].layers[1]
    assert second.whole and np.allclose(second.masses["true_mass"], exact_masses(captured, 1), rtol=0.02, atol=1e-5)


@pytest.mark.parametrize("combine", ["sum", "per_query_head"])
def test_what_was_attended_is_what_the_library_attends(plugin, small_model, captured, tmp_path, combine):
    try:
        locks = attended.library()
    except ConfigError as error:
        pytest.skip(str(error))
    _, trace = traced(plugin, small_model, tmp_path / "x", answer, TOKENS, 1, combine=combine)
    expected = attended.explain(captured, locks.Config(budget_tokens=128, combine=combine), "").steps[0].layers[0]
    got = trace.steps[0].layers[0]
    group = 1 if combine == "per_query_head" else GROUP
    assert got.lists == GROUP * KV_HEADS // group and got.bytes == expected.bytes
    np.testing.assert_array_equal(got.attended, expected.attended[::group])
    # What the step gave too little to shows as no stand-in there.
    assert not (expected.completed[::group] & ~got.completed).any()
    covered = expected.masses["covered_mass"].reshape(got.lists, group, -1).mean(1)
    assert np.allclose(got.masses["covered_mass"], covered, rtol=2 * HALF, atol=1e-6)
    assert 128 / 1200 < covered.sum(-1).mean() < 0.9
    wrong = np.abs(got.masses["estimated_mass"].astype(float) - got.masses["true_mass"]).sum(-1) / 2
    assert (wrong < 0.2).all() and (wrong > 0).all()


def test_layers_and_contexts_that_are_attended_whole_are_marked(plugin, small_model, tmp_path):
    _, trace = traced(plugin, small_model, tmp_path / "x", answer, TOKENS, 2, dense_layers=1)
    assert [[layer.whole for layer in step.layers] for step in trace.steps] == [[True, False]] * 2
    _, trace = traced(plugin, small_model, tmp_path / "x", answer, TOKENS[:100], 2)
    for layer in trace.steps[1].layers:
        assert layer.whole and not layer.completed.any() and np.unpackbits(layer.attended.view(np.uint8)).sum() == 2 * 101
        assert np.array_equal(layer.masses["true_mass"], layer.masses["estimated_mass"])
        assert np.array_equal(layer.masses["true_mass"], layer.masses["covered_mass"])


def several(state):
    """Two sequences in every batch of one context, drafted tokens in one of them, and another context."""
    both = steps.make(state, "both", 4096, num_sequences=2, unified=True)
    both.read(TOKENS[:1100], sequence=0)
    both.read(TOKENS[100:300], sequence=1)
    other = steps.make(state, "other", 2048)
    other.read(TOKENS[:600])
    both.decode([1, 2], [1100, 200], [0, 1], [1, 1])
    other.step(3, 600)
    both.decode([4, 5, 6], [1101, 1102, 201], [0, 0, 1], [1, 1, 1])
    # One sequence decodes while the other reads on; what is read is no step of the trace.
    both.decode([*TOKENS[:20], 7], [*range(202, 222), 1103], [1] * 20 + [0], [0] * 20 + [1])


def test_rows_of_several_sequences_and_contexts_are_told_apart(plugin, small_model, tmp_path):
    _, trace = traced(plugin, small_model, tmp_path / "x", several)
    found = [(step.step, step.row, step.cache, step.tokens) for step in trace.steps]
    assert found[:3] == [(0, 0, 0, 1101), (0, 1, 0, 201), (1, 0, 1, 601)]
    assert found[3:] == [(2, 0, 0, 1102), (2, 1, 0, 1103), (2, 2, 0, 202), (3, 0, 0, 1104)]
    first, second, _, again, drafted, second_again, last = (step.sequence for step in trace.steps)
    assert first == again == drafted == last != second == second_again
    assert [step.layers[0].whole for step in trace.steps] == [False, True, True, False, False, True, False]
    for layer in trace.steps[-1].layers:
        assert np.allclose(layer.masses["estimated_mass"].astype(float).sum(-1), 1, atol=2e-3)


def test_a_trace_ends_at_its_limit_and_the_answer_does_not(plugin, small_model, tmp_path, capfd):
    path = tmp_path / "x"
    (logits, counted), trace = traced(plugin, small_model, path, answer, TOKENS, 500, trace_mb=1)
    assert len(logits) == counted["decode_steps"] == 500 > len(trace.steps) > 100
    assert path.stat().st_size <= 1 << 20
    said = capfd.readouterr().err
    assert said.count("is full: its limit is 1 MiB (LOCKS_TRACE_MB)") == 1


def test_a_trace_that_cannot_be_written_does_not_matter(plugin, small_model, tmp_path, capfd):
    settings = {**SPARSE, "trace": tmp_path / "none" / "x"}
    with Session(plugin, settings, model_path=small_model) as session:
        logits, _ = session.run(answer, TOKENS, 2)
    assert len(logits) == 2 and capfd.readouterr().err.count("cannot write the trace to") == 1


def test_the_trace_of_a_killed_process_holds_the_steps_until_then(plugin, small_model, tmp_path):
    session = Session(plugin, {**SPARSE, "trace": tmp_path / "x"}, model_path=small_model)
    session.run(answer, TOKENS, 3)
    session.kill()
    session.close()
    assert len(attention_trace.load(tmp_path / "x").steps) == 3


def test_other_selectors_are_refused(plugin, small_model, tmp_path, capfd):
    with pytest.raises(RuntimeError, match="did not take"):
        Session(plugin, {"selector": "quest", "trace": tmp_path / "x"}, model_path=small_model)
    assert "LOCKS_TRACE is for the selectors locks and dense; LOCKS_SELECTOR is quest" in capfd.readouterr().err
    assert not (tmp_path / "x").exists()
