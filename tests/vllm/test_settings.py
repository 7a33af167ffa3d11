"""The settings are read as they are meant, and refused in one line that says what may be."""

import dataclasses
from pathlib import Path

import pytest

locks_cpp = pytest.importorskip("locks_cpp", reason="the native module of locks_cpp is not built")

from locks_cpp.vllm import settings  # noqa: E402
from locks_cpp.vllm.refusal import Refusal  # noqa: E402


def test_nothing_given_is_the_default():
    parsed = settings.parse({})
    assert parsed == settings.Settings(config=locks_cpp.Config())
    assert parsed.threads is None and not parsed.debug_check


def test_everything_given_is_taken():
    given = {
        "format": "graded12",
        "budget_tokens": 1000,
        "sink_tokens": 32,
        "recent_tokens": 128,
        "part_tokens": 8,
        "candidate_factor": 6,
        "completion_fraction": 0.05,
        "combine": "max",
        "min_context_tokens": 4096,
        "threads": 3,
        "exact_head_tokens": 0,
        "log_interval_seconds": 5,
        "debug_check": True,
    }
    parsed = settings.parse(given)
    for name, value in given.items():
        holder = parsed if hasattr(parsed, name) else parsed.config
        assert getattr(holder, name) == value, name


def test_presets():
    assert settings.parse({"preset": "paper"}).config == locks_cpp.Config.paper()
    changed = settings.parse({"preset": "paper", "budget_tokens": 1024}).config
    assert changed.budget_tokens == 1024 and changed.part_tokens == 16


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"budget": 512},
            ["unknown setting budget;", "budget_tokens", "min_context_tokens", "threads", "debug_check", "preset"],
        ),
        ({"budget_tokens": "512"}, ["budget_tokens is '512'", "whole number"]),
        ({"budget_tokens": True}, ["budget_tokens is True", "whole number"]),
        ({"budget_tokens": 512.0}, ["budget_tokens is 512.0", "whole number"]),
        ({"debug_check": 1}, ["debug_check is 1", "true or false"]),
        ({"completion_fraction": "0.1"}, ["completion_fraction", "a number"]),
        ({"format": None}, ["format is None", "a name"]),
        ({"format": "graded9"}, ["format", "graded9", "graded8"]),
        ({"combine": "mean"}, ["combine", "mean", "sum"]),
        ({"part_tokens": 3}, ["part_tokens", "3"]),
        ({"budget_tokens": 100}, ["budget_tokens", "100", "at least 112"]),  # below sink, recent and a page to choose
        ({"sink_tokens": 400, "recent_tokens": 200}, ["budget_tokens", "512", "sink"]),
        ({"min_context_tokens": -1}, ["min_context_tokens", "-1"]),
        ({"threads": 0}, ["threads is 0", "at least 1"]),
        ({"exact_head_tokens": -1}, ["exact_head_tokens is -1", "at least 0"]),
        ({"exact_head_tokens": "all"}, ["exact_head_tokens is 'all'", "whole number"]),
        ({"log_interval_seconds": -1}, ["log_interval_seconds", "at least 0"]),
        ({"preset": "quest"}, ["preset is 'quest'", "paper"]),
        ([], ["additional_config['locks']", "an object"]),
        (True, ["additional_config['locks']", "an object"]),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(given, words):
    with pytest.raises(Refusal) as caught:
        settings.parse(given)
    line = str(caught.value)
    assert line.startswith("LOCKS refuses to start: ") and "\n" not in line
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize(
    ("rows", "kv_heads", "given", "combine", "shortest"),
    [
        (1, 8, None, "sum", 32769),  # so many tokens are still exact
        (16, 8, None, "sum", 2049),
        (1, 2, 131072, "sum", 65537),
        (1, 8, 131072, "per_query_head", 4097),  # each query head reads for itself
        (4, 8, 131072, "sum", 4097),
        (64, 8, 131072, "sum", 1024),  # what min_context_tokens says
        (1, 8, 0, "sum", 1024),
        (3, 1, 6000, "sum", 2001),
    ],
)
def test_few_short_contexts_are_attended_exactly(rows, kv_heads, given, combine, shortest):
    parsed = settings.parse({"combine": combine} | ({} if given is None else {"exact_head_tokens": given}))
    assert parsed.exact_below(rows, 4 * kv_heads, kv_heads) == shortest


@pytest.mark.parametrize(
    ("additional", "expected"),
    [({}, False), (None, False), ({"other": 1}, False), ({"locks": {}}, True), ({"locks": None}, False)],
)
def test_what_turns_it_on(additional, expected):
    assert settings.is_configured(additional) is expected


def test_the_document_lists_every_setting_with_its_default():
    table = (Path(__file__).resolve().parents[2] / "docs" / "VLLM.md").read_text().split("## Settings")[1].split("\n## ")[0]
    rows = {cells[1].strip(" `"): cells[2].strip() for line in table.splitlines() if len(cells := line.split("|")) == 5}
    defaults = {**dataclasses.asdict(settings.parse({}).config), **dataclasses.asdict(settings.Settings(config=None))}
    del defaults["config"]
    assert rows.keys() - {"name", "---"} == defaults.keys() | {"preset"}
    for name, default in defaults.items():
        shown = {True: "true", False: "false", None: rows[name]}.get(
            default, f"{default:g}" if isinstance(default, float) else str(default)
        )
        assert rows[name] == shown, name
