"""The Python helpers by themselves."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest

import document
import filled_cache
import kl
import steps
import table
from llama_host import HostError
from plugin_path import ROOT
from progress import Progress
from session import Session, SessionError


class Words:
    """A model of which each word is a token."""

    def tokenize(self, text):
        return np.arange(len(text.split()))


def test_a_document_is_cut_to_what_fits(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("word " * 5000)
    tokens, taken = document.load(Words(), path, 3000, 2048)
    assert len(tokens) == 3000 and "its first 3,000 tokens" in taken


def test_the_default_document_is_the_project():
    assert len(document.project_text()) > 50000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"too short", "has only 2 tokens"),
        (b"\x7fELF\0\0\0\0", "not a text file"),
        (bytes(range(128, 256)) * 40, "not a UTF-8 text file"),
        (None, "No such file"),
    ],
)
def test_a_document_that_cannot_be_used_is_refused(tmp_path, content, message):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(document.DocumentError, match=message):
        document.load(Words(), path, 3000, 2048)


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (["/none.txt"], "cannot read /none.txt: No such file", 1),
        (["--tokens", "9"], "--tokens is 9; it may be 2048 to 8000", 2),
        (["--generate", "1"], "it may be 2 to 128", 2),
        (["--set", "budget"], "NAME=VALUE", 2),
        (["--plugin", "/none.so"], "no such file: /none.so", 1),
    ],
)
def test_the_demo_says_what_is_wrong_before_anyone_waits(arguments, message, status, tmp_path):
    run = subprocess.run(
        [sys.executable, str(ROOT / "python" / "demo.py"), "--out", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == status
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_divergence_of_known_distributions():
    p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.5, 0.25]])
    expected = 0.5 * np.log(2) - 0.25 * np.log(2)
    np.testing.assert_allclose(kl.divergence(np.log(p) + 3, np.log(q) - 1000), [expected], rtol=1e-12)
    assert kl.divergence(np.log(p), np.log(p)) == 0


def test_progress_is_plain_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    progress = Progress("reading", 1000, stream=stream)
    for done in range(100, 1001, 100):
        progress.update(done)
    assert stream.getvalue() == "reading: 1,000 of 1,000 tokens, 0 s\n"


def test_progress_rewrites_its_line_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    progress = Progress("reading", 1000, stream=stream)
    progress.update(500)
    progress.update(1000)
    assert stream.getvalue().count("\r") == 2 and stream.getvalue().endswith("\n")
    assert "[############............] reading: 500 of 1,000 tokens" in stream.getvalue()


def outcome(**changes):
    statistics = dict(
        decode_steps=10,
        score_bytes=200,
        attend_bytes=250,
        complete_bytes=50,
        dense_bytes=5000,
        attended_tokens=500.0,
        context_tokens=5000.0,
        coverage=0.9,
        layers=30,
        completed_pages=40.0,
        summarized_pages=9000,
        summarize_seconds=0.1,
    )
    values = dict(
        context_tokens=5000,
        threads=2,
        document="a text",
        stock_prompt_seconds=50.0,
        sampled_tokens=1000,
        sampled_stock_seconds=10.0,
        sampled_locks_seconds=4.0,
        stock_step_seconds=[0.1, 0.12, 0.2],
        locks_step_seconds=[0.03, 0.04, 0.3],
        num_generated=3,
        first_difference=None,
        stock_text="a",
        locks_text="a",
        statistics=statistics,
    )
    return table.Outcome(**{**values, **changes})


def test_the_table_says_what_the_json_says():
    found = table.as_json(outcome())
    assert json.loads(json.dumps(found)) == found
    assert found["decode_speedup"] == pytest.approx(3.0) and found["prompt_speedup"] == pytest.approx(2.5)
    assert found["attended_share"] == pytest.approx(0.1) and found["bytes_share"] == pytest.approx(0.1)
    text = table.render(outcome())
    for piece in ("3.00 x", "2.50 x", "10.0%", "90.0 %", "Both texts are the same, all 3 tokens"):
        assert piece in text
    assert "first differ at token 2 of 3" in table.render(outcome(first_difference=1))


def test_a_filled_cache_is_a_long_one(small_model):
    with Session(model_path=small_model) as session:
        _, cache = session.run(steps.read, np.arange(48))
        long = filled_cache.extend(cache, 1000)
        position, logits = session.run(step_behind, long)
    assert position == 999 and np.isfinite(logits).all()
    np.testing.assert_array_equal(filled_cache.extend(cache, 48), cache)
    for broken in (cache[:-1], filled_cache.for_streams(cache, 2)):
        with pytest.raises(HostError):
            filled_cache.extend(broken, 1000)
    with pytest.raises(HostError):
        filled_cache.extend(cache, 47)


def step_behind(state, cache):
    context = steps.make(state, "long", 1100)
    context.restore(cache)
    position = context.last_position()
    logits = context.step(1, position + 1)
    state.close("long")
    return position, logits


def test_a_session_says_how_its_process_ended(small_model):
    with Session(model_path=small_model) as session:
        with pytest.raises(HostError, match="position 5 to 3"):
            session.run(fail)
        with pytest.raises(SessionError, match="ended with status 7"):
            session.run(leave)


def fail(state):
    raise HostError("position 5 to 3")


def leave(state):
    import os

    os._exit(7)


def test_a_model_that_is_none(tmp_path):
    path = tmp_path / "none.gguf"
    path.write_bytes(b"GGUF nothing more")
    with pytest.raises(HostError, match="cannot load"):
        Session(model_path=path)
