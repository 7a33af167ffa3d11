"""The settings are read as they are meant, and refused in one line that says what may be."""

import dataclasses
from pathlib import Path

import pytest

locks_cpp = pytest.importorskip("locks_cpp", reason="the native module of locks_cpp is not built")

from locks_cpp.vllm import settings  # noqa: E402
from locks_cpp.vllm.refusal import Refusal  # noqa: E402


PARTS = locks_cpp.Config()
PAGES = locks_cpp.Config(part_tokens=16, budget_tokens=1024)
DEVICES = pytest.mark.parametrize("cuda", [False, True], ids=["cpu", "cuda"])


@DEVICES
def test_nothing_given_is_the_default(cuda):
    parsed = settings.parse({}, cuda=cuda)
    assert parsed == settings.Settings(config=PAGES if cuda else PARTS)
    assert parsed.threads is None and not parsed.debug_check


@DEVICES
def test_everything_given_is_taken(cuda):
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
    parsed = settings.parse(given, cuda=cuda)
    for name, value in given.items():
        holder = parsed if hasattr(parsed, name) else parsed.config
        assert getattr(holder, name) == value, name


@DEVICES
def test_presets(cuda):
    configs = {"default": PAGES if cuda else PARTS, "parts": PARTS, "pages": PAGES, "paper": locks_cpp.Config.paper()}
    assert tuple(configs) == settings.PRESETS
    for preset, config in configs.items():
        assert settings.parse({"preset": preset}, cuda=cuda).config == config, preset


@pytest.mark.parametrize(
    ("cuda", "given", "part_tokens", "budget_tokens", "selects"),
    [
        (False, {"budget_tokens": 2048}, 4, 2048, "parts of 4"),
        (True, {"budget_tokens": 2048}, 16, 2048, "whole pages"),
        (True, {"budget_tokens": 512}, 16, 512, "whole pages"),
        (False, {"part_tokens": 16}, 16, 512, "whole pages"),
        (True, {"part_tokens": 4}, 4, 1024, "parts of 4"),
        (True, {"part_tokens": 8, "budget_tokens": 768}, 8, 768, "parts of 8"),
        (True, {"preset": "default", "budget_tokens": 768}, 16, 768, "whole pages"),
        (True, {"preset": "parts", "part_tokens": 2}, 2, 512, "parts of 2"),
        (True, {"preset": "parts", "budget_tokens": 256}, 4, 256, "parts of 4"),
        (False, {"preset": "pages", "budget_tokens": 256}, 16, 256, "whole pages"),
        (False, {"preset": "paper", "budget_tokens": 1024}, 16, 1024, "whole pages"),
    ],
)
def test_what_is_given_beside_a_preset_wins(cuda, given, part_tokens, budget_tokens, selects):
    parsed = settings.parse(given, cuda=cuda)
    assert (parsed.config.part_tokens, parsed.config.budget_tokens) == (part_tokens, budget_tokens)
    assert parsed.selects == selects


def test_what_is_given_leaves_the_rest_of_the_preset():
    assert settings.parse({"budget_tokens": 2048}, cuda=True).config == dataclasses.replace(PAGES, budget_tokens=2048)
    changed = settings.parse({"preset": "paper", "budget_tokens": 1024}, cuda=True).config
    assert changed == dataclasses.replace(locks_cpp.Config.paper(), budget_tokens=1024)


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
        ({"preset": "quest"}, ["preset is 'quest'; expected default, parts, pages or paper"]),
        ([], ["additional_config['locks']", "an object"]),
        (True, ["additional_config['locks']", "an object"]),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(given, words):
    with pytest.raises(Refusal) as caught:
        settings.parse(given, cuda=False)
    line = str(caught.value)
    assert line.startswith("LOCKS refuses to start: ") and "\n" not in line
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize(
    ("rows", "kv_heads", "given", "combine", "shortest"),
    [
        (1, 8, None, "sum", 20481),  # so many tokens are still exact
        (16, 8, None, "sum", 1281),
        (1, 2, 131072, "sum", 65537),
        (1, 8, 131072, "per_query_head", 4097),  # each query head reads for itself
        (4, 8, 131072, "sum", 4097),
        (64, 8, 131072, "sum", 1024),  # what min_context_tokens says
        (1, 8, 0, "sum", 1024),
        (3, 1, 6000, "sum", 2001),
    ],
)
def test_few_short_contexts_are_attended_exactly(rows, kv_heads, given, combine, shortest):
    parsed = settings.parse({"combine": combine} | ({} if given is None else {"exact_head_tokens": given}), cuda=True)
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
    own = dataclasses.asdict(settings.Settings(config=None))
    del own["config"]
    on_cpu, on_cuda = (dataclasses.asdict(settings.parse({}, cuda=cuda).config) | own for cuda in (False, True))
    assert rows.keys() - {"name", "---"} == on_cpu.keys() | {"preset"}

    def shown(default):
        words = {True: "true", False: "false"}
        return words.get(default, f"{default:g}" if isinstance(default, float) else str(default))

    for name, default in on_cpu.items():
        by_device = "" if on_cuda[name] == default else f"; on CUDA {shown(on_cuda[name])}"
        assert default is None or rows[name] == shown(default) + by_device, name
    preset = next(line for line in table.splitlines() if line.startswith("| `preset`"))
    assert all(f"`{name}`" in preset for name in settings.PRESETS if name != "default")
