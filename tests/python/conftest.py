import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import kl  # noqa: E402
import make_gguf  # noqa: E402
import steps  # noqa: E402
import texts  # noqa: E402
from plugin_path import find_plugin  # noqa: E402
from session import Session  # noqa: E402

CONTEXT, POSITIONS = 7500, 64
SHORT = 2048


@pytest.fixture(scope="session")
def plugin():
    try:
        return find_plugin()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def session_fixture(settings):
    @pytest.fixture(scope="session")
    def made(plugin):
        with Session(plugin, {"report": 0, **settings}) as session:
            yield session

    return made


dense = session_fixture({"selector": "dense"})
everything = session_fixture({"budget_tokens": 1000000})
selected = session_fixture(kl.with_selected(64))
plain = session_fixture(kl.with_selected(64, **kl.PLAIN))


@pytest.fixture(scope="session")
def stock():
    with Session() as session:
        yield session


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """Two layers of float weights: unlike the real model's, they do not turn a rounding difference into a visible one."""
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    make_gguf.write(
        path,
        make_gguf.Shape(
            layers=2,
            hidden=256,
            query_heads=4,
            kv_heads=2,
            feed_forward=512,
            vocabulary=256,
            context=4096,
            full_precision=True,
        ),
    )
    return path


class Text:
    """A text's tokens and the cache after `start` of them."""

    def __init__(self, tokens, start, cache):
        self.tokens, self.start, self.cache = tokens, start, cache

    def next(self, count):
        return self.tokens[self.start : self.start + count]


def long_text(make):
    @pytest.fixture(scope="session")
    def read(dense):
        tokens = dense.run(steps.tokenize, make())
        assert len(tokens) >= CONTEXT + POSITIONS
        return Text(tokens[: CONTEXT + POSITIONS], CONTEXT, dense.run(kl.read_text, tokens[:CONTEXT]))

    return read


def short_text(name):
    @pytest.fixture(scope="session")
    def cut(request, dense):
        text = request.getfixturevalue(name)
        return Text(text.tokens, SHORT, dense.run(steps.cut, text.cache, text.start, SHORT))

    return cut


prose = long_text(texts.prose)
code = long_text(texts.code)
short_prose = short_text("prose")
short_code = short_text("code")
