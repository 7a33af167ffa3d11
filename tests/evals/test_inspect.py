"""What a step attended, and the command that shows it."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import fake_engine  # noqa: F401 - finds evals

import attended  # noqa: E402
import attention_trace  # noqa: E402
import capture  # noqa: E402
import inspect_step  # noqa: E402
import make_gguf  # noqa: E402
from checks import ConfigError  # noqa: E402
from llama_host import HostError, real_model_path  # noqa: E402
from plugin_path import find_plugin  # noqa: E402
from session import Session  # noqa: E402

LAYERS, QUERY_HEADS, KV_HEADS, HEAD_DIM = 2, 4, 2, 64
TOKENS = 1100  # neither whole pages nor a multiple of the head's dimensions
PAGES = 69


@pytest.fixture(scope="module")
def locks():
    try:
        return attended.library()
    except ConfigError as error:
        pytest.skip(str(error))


def step_of(tokens=TOKENS):
    random = np.random.default_rng(3)
    shape = LAYERS, tokens, KV_HEADS, HEAD_DIM
    keys, values = (random.standard_normal(shape).astype(np.float16) for _ in range(2))
    queries = random.standard_normal((LAYERS, QUERY_HEADS, HEAD_DIM), np.float32)
    return capture.Step([f"{i} " for i in range(tokens)], HEAD_DIM**-0.5, queries, keys, values)


def bits(step, name="attended"):
    """Whether each token was attended, [layers, lists, tokens]."""
    each = np.array([getattr(layer, name) for layer in step.layers])[..., None] >> np.arange(16) & 1
    return each.reshape(*each.shape[:2], -1)[..., : step.tokens].astype(bool)


def masses(step, name):
    """[layers, lists, pages]"""
    return np.array([layer.masses[name] for layer in step.layers])


def softmax(step):
    """In double precision, [layers, query heads, tokens]."""
    keys = np.repeat(step.keys.astype(np.float64), QUERY_HEADS // KV_HEADS, axis=2)
    shares = np.exp(step.scale * np.einsum("lhd,lthd->lht", step.queries, keys))
    return shares / shares.sum(-1, keepdims=True)


def by_page(shares):
    return np.pad(shares, ((0, 0), (0, 0), (0, 16 * PAGES - TOKENS))).reshape(LAYERS, QUERY_HEADS, PAGES, 16).sum(-1)


def test_a_step_that_attends_everything_gives_what_exact_attention_does(locks):
    step = step_of()
    (traced,) = attended.explain(step, locks.Config(min_context_tokens=4096), "a model").steps
    exact = by_page(softmax(step))
    for name in ("true_mass", "covered_mass", "attended_mass"):
        assert np.allclose(masses(traced, name), exact, atol=1e-5), name
    assert bits(traced).all() and not masses(traced, "completed_mass").any() and not bits(traced, "completed").any()
    assert all(layer.whole for layer in traced.layers)


@pytest.mark.parametrize("combine", ["sum", "per_query_head"])
def test_a_sparse_step_attends_its_budget_and_shares_out_the_whole(locks, combine):
    step = step_of()
    config = locks.Config(budget_tokens=192, combine=combine)
    trace = attended.explain(step, config, "a model")
    (traced,) = trace.steps
    found, exact = bits(traced), softmax(step)
    assert found.shape == (LAYERS, QUERY_HEADS, TOKENS) and (found.sum(-1) <= 192).all() and (found.sum(-1) > 180).all()
    assert found[..., :16].all() and found[..., -64:].all()  # sink and recent tokens
    pairs = found.reshape(LAYERS, KV_HEADS, -1, TOKENS)
    assert (pairs[:, :, 0] == pairs[:, :, 1]).all() == (combine == "sum")
    covered_mass, attended_mass = masses(traced, "covered_mass"), masses(traced, "attended_mass")
    completed_mass = masses(traced, "completed_mass")
    assert np.allclose(covered_mass, by_page(exact * found), atol=1e-5)
    assert np.allclose(masses(traced, "true_mass"), by_page(exact), atol=1e-5)
    # What a step gives is shared out among attended tokens as exact attention does it, and the rest goes to stand-ins.
    given, covered = attended_mass.sum(-1), covered_mass.sum(-1)
    assert np.allclose(attended_mass / given[..., None], covered_mass / covered[..., None], atol=1e-4)
    assert np.allclose(given + completed_mass.sum(-1), 1, atol=1e-3)
    assert not (bits(traced, "completed") & found).any()
    completed = (completed_mass > 0).sum(-1)  # a tenth, and what the budget holds beside sink, recent and last tokens
    assert 1 <= completed.min() and completed.max() <= 0.1 * PAGES + 1 + (192 - 16 - 64 - TOKENS % 16) // 16
    assert 0 < sum(traced.bytes(name) for name in ("score", "attend", "complete")) < traced.bytes("dense")
    assert not any(layer.whole for layer in traced.layers)
    assert trace.settings["combine"] == combine and trace.settings["format"] == "graded8"


def test_what_is_found_is_what_the_step_reports(locks):
    step = step_of()
    layer = attended._Layer(step, locks.Config(budget_tokens=192), 1)
    found = (layer.attended[..., None] >> np.arange(16) & 1).sum((-1, -2))
    assert found.mean() == layer.report.attended_tokens[0]
    assert (layer.completed_mass > 0).sum(-1).mean() == layer.report.completed_pages[0] > 0
    # The report's coverage is an estimate from the summaries.
    assert layer.covered_mass.sum(-1).mean() == pytest.approx(layer.report.coverage[0], abs=0.02)


def test_without_completion_nothing_stands_in(locks):
    (traced,) = attended.explain(step_of(), locks.Config(budget_tokens=192, completion_fraction=0.0), "a model").steps
    assert not masses(traced, "completed_mass").any()
    assert np.allclose(masses(traced, "attended_mass").sum(-1), 1, atol=1e-4)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    small = {"layers": 2, "hidden": 256, "query_heads": 4, "kv_heads": 2, "feed_forward": 512, "vocabulary": 256}
    make_gguf.write(path, make_gguf.Shape(**small, context=8192, full_precision=True))
    return path


def captured(model, tokens):
    with Session(None, {}, model) as session:
        return session.run(capture.read, tokens)


def test_a_models_step_is_captured_and_explained(model, locks):
    tokens = np.random.default_rng(1).integers(0, 256, 1200).astype(np.int32)
    step = captured(model, tokens)
    assert step.queries.shape == (2, 4, 64) and step.keys.shape == step.values.shape == (2, 1200, 2, 64)
    assert len(step.tokens) == 1200 and step.scale == pytest.approx(1 / 8)
    (traced,) = attended.explain(step, locks.Config(budget_tokens=128), "small").steps
    assert bits(traced).sum(-1).max() <= 128 and np.allclose(masses(traced, "true_mass").sum(-1), 1, atol=1e-4)
    # The keys of a shorter text are the first of a longer one, but for how batches are rounded.
    assert np.allclose(captured(model, tokens[:600]).keys, step.keys[:, :600], atol=0.05)


def test_what_half_precision_loses_over_a_long_context_is_no_other_layout(model):
    tokens = np.random.default_rng(1).integers(0, 256, 7000).astype(np.int32)
    assert captured(model, tokens).keys.shape == (2, 7000, 2, 64)


def test_a_layout_that_gives_other_attention_is_refused(model, monkeypatch):
    tokens = np.arange(40, dtype=np.int32)
    with Session(None, {}, model) as session, pytest.raises(HostError, match="in a way unknown here"):
        session.run(_read_with_other_shares, tokens)


def _read_with_other_shares(state, tokens):
    capture.attention = lambda queries, keys, scale: np.full((len(queries), len(keys)), 1 / len(keys), np.float32)
    return capture.read(state, tokens)


def test_more_than_the_model_was_trained_for_is_refused():
    model = SimpleNamespace(beginning=[1], tokenize=lambda text: [2] * 40, max_context_tokens=80)
    with pytest.raises(HostError, match="81 tokens are to be read, and the model was trained for 80"):
        inspect_step.prompt(model, None, 64, "What?")
    with pytest.raises(HostError, match="82 tokens are to be read"):
        inspect_step.prompt(SimpleNamespace(**{**vars(model), "max_context_tokens": 81}), None, 64, "What?", more=1)


def test_a_model_with_a_sliding_window_is_refused(tmp_path):
    small = {"layers": 2, "hidden": 256, "query_heads": 4, "kv_heads": 2, "feed_forward": 512, "vocabulary": 256}
    make_gguf.write(tmp_path / "window.gguf", make_gguf.Shape(**small, context=2048, sliding_window=64))
    with pytest.raises(HostError, match="cannot be shown"):
        captured(tmp_path / "window.gguf", np.arange(200, dtype=np.int32))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trace", "none.trace"], "cannot read none.trace"),
        (["--set", "budget=5"], "unknown setting 'budget'; did you mean 'budget_tokens'"),
        (["--set", "budget_tokens=many"], "--set budget_tokens=many: expected a number"),
        (["--text", "none.txt"], "cannot read none.txt"),
        (["--answer", "3", "--set", "budget=5"], "LOCKS_BUDGET is not a setting; known are"),
        (["--answer", "3", "--set", "selector=quest"], "LOCKS_TRACE is for the selectors locks and dense"),
    ],
)
def test_the_command_line_says_what_is_wrong(tmp_path, locks, flags, message):
    command = [sys.executable, inspect_step.__file__, "--out", str(tmp_path / "out"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


def test_an_answer_is_generated_with_the_plug_in_and_shown_again(tmp_path):
    try:
        real_model_path(), find_plugin()
    except (HostError, FileNotFoundError) as error:
        pytest.skip(str(error))
    (tmp_path / "a.txt").write_text("The lamp in the hall is <b>green</b>, und der Löwe schläft. " * 40, encoding="utf-8")
    command = [sys.executable, inspect_step.__file__, "--out", str(tmp_path / "out")]
    more = ["--text", str(tmp_path / "a.txt"), "--tokens", "300", "--question", "\nWhat colour is the lamp?"]
    more += ["--answer", "4", "--set", "budget_tokens=112", "--set", "min_context=128"]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    trace = attention_trace.load(tmp_path / "out" / "answer.trace")
    question = next(i for i in range(len(trace.tokens) - 1, 0, -1) if trace.tokens[i] == "?")
    # The first step is the one behind the question, and each generated token but the last has one.
    assert [step.tokens for step in trace.steps] == list(range(question + 1, len(trace.tokens)))
    assert 1 <= len(trace.steps) <= 4 and trace.model.startswith("SmolLM2") and trace.settings["budget_tokens"] == 112
    assert "".join(trace.tokens).startswith("The lamp in the hall is <b>green")
    for step in trace.steps:
        assert len(step.layers) == 30 and bits(step).sum(-1).max() <= 112
        assert 0.5 < masses(step, "covered_mass").astype(float).sum(-1).mean() < 1
        wrong = np.abs(masses(step, "estimated_mass").astype(float) - masses(step, "true_mass")).sum(-1).mean() / 2
        assert 0 < wrong < 0.2
    page = (tmp_path / "out" / "answer.html").read_text(encoding="utf-8")
    again = [*command, "--trace", str(tmp_path / "out" / "answer.trace")]
    assert subprocess.run(again, capture_output=True, timeout=60).returncode == 0
    assert (tmp_path / "out" / "answer.html").read_text(encoding="utf-8") == page


def test_a_real_models_step_is_written_and_shown_again(tmp_path, locks):
    try:
        real_model_path()
    except HostError as error:
        pytest.skip(str(error))
    (tmp_path / "a.txt").write_text("The lamp in the hall is <b>green</b>, und der Löwe schläft. " * 40, encoding="utf-8")
    command = [sys.executable, inspect_step.__file__, "--out", str(tmp_path / "out")]
    more = ["--text", str(tmp_path / "a.txt"), "--tokens", "300", "--question", "\nWhat colour is the lamp?"]
    more += ["--set", "budget_tokens=112", "--set", "min_context_tokens=128"]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "step.html").read_text(encoding="utf-8")
    trace = attention_trace.load(tmp_path / "out" / "step.trace")
    (traced,) = trace.steps
    assert "".join(trace.tokens).startswith("The lamp in the hall is <b>green") and trace.tokens[-1] == "?"
    assert len(traced.layers) == 30 and bits(traced).sum(-1).max() <= 112
    assert 0.5 < masses(traced, "covered_mass").astype(float).sum(-1).mean() < 1
    again = [*command, "--trace", str(tmp_path / "out" / "step.trace")]
    assert subprocess.run(again, capture_output=True, timeout=60).returncode == 0
    assert (tmp_path / "out" / "step.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("flags", (["--answer", "4"], ["--text", "a.txt"], ["--set", "budget_tokens=256"]))
def test_what_is_for_a_new_trace_is_refused_beside_one(capsys, flags):
    with pytest.raises(SystemExit) as caught:
        inspect_step.parse(["--trace", "step.trace", *flags])
    assert caught.value.code == 2
    assert f"--trace shows what a file has, and {flags[0]} is for a new one" in capsys.readouterr().err
