"""What a step attended, the file that holds it, and the page that shows it."""

import base64
import dataclasses
import json
import random
import re
import shutil
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
from attention_trace import MAGIC, Trace, TraceError  # noqa: E402
from checks import ConfigError  # noqa: E402
from llama_host import HostError, real_model_path  # noqa: E402
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


def bits(trace):
    """Whether each token was attended, [layers, query heads, tokens]."""
    each = trace.attended[..., None] >> np.arange(16) & 1
    return each.reshape(trace.layers, trace.query_heads, -1)[..., : len(trace.tokens)].astype(bool)


def softmax(step):
    """In double precision, [layers, query heads, tokens]."""
    keys = np.repeat(step.keys.astype(np.float64), QUERY_HEADS // KV_HEADS, axis=2)
    shares = np.exp(step.scale * np.einsum("lhd,lthd->lht", step.queries, keys))
    return shares / shares.sum(-1, keepdims=True)


def by_page(shares):
    return np.pad(shares, ((0, 0), (0, 0), (0, 16 * PAGES - TOKENS))).reshape(LAYERS, QUERY_HEADS, PAGES, 16).sum(-1)


def test_a_step_that_attends_everything_gives_what_exact_attention_does(locks):
    step = step_of()
    trace = attended.explain(step, locks.Config(min_context_tokens=4096), "a model")
    exact = by_page(softmax(step))
    for name in attention_trace.MASSES:
        assert getattr(trace, name).dtype == np.float32
    for name in ("true_mass", "covered_mass", "attended_mass"):
        assert np.allclose(getattr(trace, name), exact, atol=1e-5), name
    assert bits(trace).all() and not trace.completed_mass.any()


@pytest.mark.parametrize("combine", ["sum", "per_query_head"])
def test_a_sparse_step_attends_its_budget_and_shares_out_the_whole(locks, combine):
    step = step_of()
    config = locks.Config(budget_tokens=192, combine=combine)
    trace = attended.explain(step, config, "a model")
    found, exact = bits(trace), softmax(step)
    assert found.shape == (LAYERS, QUERY_HEADS, TOKENS) and (found.sum(-1) <= 192).all() and (found.sum(-1) > 180).all()
    assert found[..., :16].all() and found[..., -64:].all()  # sink and recent tokens
    pairs = found.reshape(LAYERS, KV_HEADS, -1, TOKENS)
    assert (pairs[:, :, 0] == pairs[:, :, 1]).all() == (combine == "sum")
    assert np.allclose(trace.covered_mass, by_page(exact * found), atol=1e-5)
    assert np.allclose(trace.true_mass, by_page(exact), atol=1e-5)
    # What a step gives is shared out among attended tokens as exact attention does it, and the rest goes to stand-ins.
    given, covered = trace.attended_mass.sum(-1), trace.covered_mass.sum(-1)
    assert np.allclose(trace.attended_mass / given[..., None], trace.covered_mass / covered[..., None], atol=1e-4)
    assert np.allclose(given + trace.completed_mass.sum(-1), 1, atol=1e-3)
    completed = (trace.completed_mass > 0).sum(-1)  # a tenth, and what the budget holds beside sink, recent and last tokens
    assert 1 <= completed.min() and completed.max() <= 0.1 * PAGES + 1 + (192 - 16 - 64 - TOKENS % 16) // 16
    assert 0 < trace.bytes["score"] + trace.bytes["attend"] + trace.bytes["complete"] < trace.bytes["dense"]
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
    trace = attended.explain(step_of(), locks.Config(budget_tokens=192, completion_fraction=0.0), "a model")
    assert not trace.completed_mass.any() and np.allclose(trace.attended_mass.sum(-1), 1, atol=1e-4)


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
    trace = attended.explain(step, locks.Config(budget_tokens=128), "small")
    assert bits(trace).sum(-1).max() <= 128 and np.allclose(trace.true_mass.sum(-1), 1, atol=1e-4)
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
        inspect_step._capture(SimpleNamespace(model=model), None, 64, "What?")


def test_a_model_with_a_sliding_window_is_refused(tmp_path):
    small = {"layers": 2, "hidden": 256, "query_heads": 4, "kv_heads": 2, "feed_forward": 512, "vocabulary": 256}
    make_gguf.write(tmp_path / "window.gguf", make_gguf.Shape(**small, context=2048, sliding_window=64))
    with pytest.raises(HostError, match="cannot be shown"):
        captured(tmp_path / "window.gguf", np.arange(200, dtype=np.int32))


# The file.


def made(layers=2, heads=3, tokens=35, text="word "):
    random = np.random.default_rng(5)
    pages = -(-tokens // 16)
    masses = {name: random.random((layers, heads, pages), np.float32) / pages for name in attention_trace.MASSES}
    picked = random.integers(0, 1 << 16, (layers, heads, pages)).astype(np.uint16)
    picked[..., -1] &= (1 << (tokens - 16 * (pages - 1))) - 1
    read = dict.fromkeys(attention_trace.BYTES, 7)
    return Trace("a model", {"budget_tokens": 9}, [f"{text}{i}" for i in range(tokens)], read, **masses, attended=picked)


def test_a_trace_is_the_same_behind_a_file(tmp_path):
    trace = made()
    trace.save(tmp_path / "step.trace")
    for field, value in vars(attention_trace.load(tmp_path / "step.trace")).items():
        assert np.array_equal(value, getattr(trace, field)), field


def header_of(path):
    _, header, _ = path.read_bytes().split(b"\n", 2)
    return json.loads(header)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pages": 0}, "pages is 0"),
        ({"layers": True}, "layers is True"),
        ({"layers": 10**400}, "layers is 1000"),
        ({"query_heads": 4}, "bytes, and its header means"),
        ({"query_heads": 2}, "bytes, and its header means"),
        ({"pages": 4}, "35 tokens in 4 pages"),
        ({"tokens": ["x", 5]}, "tokens is not a list of texts"),
        ({"model": None}, "model is not a text"),
        ({"settings": {"a": []}}, "settings is not a table"),
        ({"bytes": {"score": 1}}, "bytes is not a table of score"),
        ({"bytes": dict.fromkeys(attention_trace.BYTES, -1)}, "bytes has counts that"),
        ({"bytes": dict.fromkeys(attention_trace.BYTES, 10**400)}, "bytes has counts that"),
    ],
)
def test_a_header_that_says_something_else_is_refused(tmp_path, changes, message):
    path = tmp_path / "step.trace"
    made().save(path)
    magic, header, rest = path.read_bytes().split(b"\n", 2)
    path.write_bytes(b"\n".join([magic, json.dumps({**json.loads(header), **changes}).encode(), rest]))
    with pytest.raises(TraceError, match=f"step.trace: .*{message}"):
        attention_trace.load(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a trace of version 1"),
        (MAGIC.replace(b"1", b"2"), "not a trace of version 1"),
        (MAGIC, "the header has no end"),
        (MAGIC + b"{\n", "the header is not JSON"),
        (MAGIC + b"[" * 100000 + b"\n", "the header is not JSON"),
        (MAGIC + b"[]\n", "the header is not an object"),
    ],
    ids=str,
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, data, message):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(TraceError, match=message):
        attention_trace.load(tmp_path / "x")


def test_values_that_are_no_shares_are_refused(tmp_path):
    for value in (np.nan, np.inf, -0.5, 1.5):
        trace = made()
        trace.covered_mass[0, 0, 0] = value
        trace.save(tmp_path / "x")
        with pytest.raises(TraceError, match="covered_mass has values that are no shares"):
            attention_trace.load(tmp_path / "x")
    trace = made()
    trace.attended[1, 1, -1] = 1 << 3  # of three tokens
    trace.save(tmp_path / "x")
    with pytest.raises(TraceError, match="behind the last one"):
        attention_trace.load(tmp_path / "x")


def test_a_file_that_is_too_large_is_neither_written_nor_read(tmp_path, monkeypatch):
    trace = made()
    trace.save(tmp_path / "x")
    monkeypatch.setattr(attention_trace, "MAX_BYTES", (tmp_path / "x").stat().st_size - 1)
    with pytest.raises(TraceError, match="more than"):
        attention_trace.load(tmp_path / "x")
    with pytest.raises(TraceError, match="take fewer tokens"):
        trace.save(tmp_path / "y")
    assert not (tmp_path / "y").exists()


def test_damaged_files_are_refused_or_still_traces(tmp_path):
    path, chance = tmp_path / "x", random.Random(7)
    made(1, 2, 20).save(path)
    whole = path.read_bytes()
    refused = 0
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice((0, 9, 0x22, 0x2C, 0x39, 0x7F, 0xFF, chance.randrange(256)))
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            inspect_step.page(attention_trace.load(path))
        except TraceError:
            refused += 1
    assert 300 < refused < 1000


# The page.


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_a_page_holds_the_trace_and_no_text_ends_its_script():
    trace = dataclasses.replace(made(), tokens=["</script><script>alert(1)</script>", *made().tokens[1:]])
    page = inspect_step.page(trace)
    data = data_of(page)
    assert data["tokens"] == trace.tokens and page.count("<script") == 2 and "@DATA@" not in page
    assert not re.search(r"(src|href)=|url\(|@import|https?:", page)
    picked = np.frombuffer(base64.b64decode(data["attended"]), "<u2").reshape(trace.attended.shape)
    assert np.array_equal(picked, trace.attended)


def test_the_page_shows_it_in_a_browser(tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no chromium to open the page in")
    trace = made()
    trace.attended[...] = 0
    trace.attended[0, 1, 1] = 1 << 4  # token 20, in layer 0, by head 1
    trace.completed_mass[...] = 0
    trace.completed_mass[1, 2, 2] = 0.5
    probe = """<script>
    const seen = [byId("hint").textContent, document.querySelectorAll("#text span").length];
    spans[20].onmouseenter();
    seen.push(byId("hint").textContent, spans.filter((span) => span.className.includes("here")).length);
    choose(0, 1);
    seen.push(spans.filter((span) => span.className === "attended").map((span) => span.textContent).join());
    choose(1, 2);
    seen.push(spans.filter((span) => span.className === "completed").length, byId("heads").width, byId("pages").height);
    document.body.append(Object.assign(document.createElement("pre"), { id: "seen", textContent: JSON.stringify(seen) }));
    </script>"""
    (tmp_path / "x.html").write_text(inspect_step.page(trace).replace("</body>", probe + "</body>"), encoding="utf-8")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
    ]
    done = subprocess.run([*command, (tmp_path / "x.html").as_uri()], capture_output=True, text=True, timeout=60)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)
    assert found, done.stderr[-2000:]
    first, spans, hover, here, underlined, dotted, width, height = json.loads(found[1])
    assert first == "1 of 35 tokens attended by any of the chosen heads" and spans == 35 and here == 16
    assert hover.startswith("token 20, page 1: true mass ") and hover.endswith("token attended by 1 of 6")
    assert f"true mass {100 * trace.true_mass[..., 1].mean():.1f} %" in hover
    assert (underlined, dotted, width, height) == ("word 20", 3, 3 * 14, 2 * 14)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trace", "none.trace"], "cannot read none.trace"),
        (["--set", "budget=5"], "unknown setting 'budget'; did you mean 'budget_tokens'"),
        (["--set", "budget_tokens=many"], "--set budget_tokens=many: expected a number"),
        (["--text", "none.txt"], "cannot read none.txt"),
    ],
)
def test_the_command_line_says_what_is_wrong(tmp_path, locks, flags, message):
    command = [sys.executable, inspect_step.__file__, "--out", str(tmp_path / "out"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


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
    assert "".join(trace.tokens).startswith("The lamp in the hall is <b>green") and trace.tokens[-1] == "?"
    assert trace.layers == 30 and bits(trace).sum(-1).max() <= 112 and 0.5 < trace.covered_mass.sum(-1).mean() < 1
    again = [*command, "--trace", str(tmp_path / "out" / "step.trace")]
    assert subprocess.run(again, capture_output=True, timeout=60).returncode == 0
    assert (tmp_path / "out" / "step.html").read_text(encoding="utf-8") == page
