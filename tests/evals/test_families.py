"""Reports of many methods: families in rows and on lines."""

import math
import re
from pathlib import Path

import pytest

import fake_engine
from fake_engine import POSITIONS, FakeEngine, make_run

import families  # noqa: E402
import plots  # noqa: E402
import report  # noqa: E402

SIZES = (64, 128, 256)
SELECTORS = ("locks", "oracle", "quest", "unique", "compkv", "two_bit", "rocketkv")
METHODS = {
    "dense": {"selector": "dense"},
    **{f"{name} {size}": {"selector": name, "budget_tokens": size} for name in SELECTORS for size in SIZES},
    "random 256": {"selector": "random", "budget_tokens": 256},
}
TASKS = [{"name": "kl", "tokens": 300, "positions": POSITIONS}, {"name": "tiny/passkey", "tokens": 400, "count": 6}]


class Facts(FakeEngine):
    def facts(self):
        return {**super().facts(), "rope_pairs": "interleaved"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    fake_engine.use_tiny_tasks(patch)
    path = tmp_path_factory.mktemp("many")
    run = make_run(path, {"progress": False, "method": METHODS, "task": TASKS}, jobs=2)
    run.make_engine = Facts
    run.go()
    patch.undo()
    return report.Report(path / "out")


def test_families_are_known_by_their_names():
    names = ["dense q8_0", "locks 128", "locks 64", "as published 64", "locks 256, no completion"]
    names += ["oracle, pages 64", "oracle, pages 128"]
    assert families.families(names) == {
        "locks": {64: "locks 64", 128: "locks 128"},
        "oracle, pages": {64: "oracle, pages 64", 128: "oracle, pages 128"},
    }
    assert families.sizes(names) == [64, 128] and families.groups(names) == [(None, names)]
    table = families.table("score", names, str.upper)
    assert table[0] == ["score", "64", "128"] and table[2] == ["oracle, pages", "ORACLE, PAGES 64", "ORACLE, PAGES 128"]
    assert ["dense q8_0", "DENSE Q8_0", "DENSE Q8_0"] in table and ["as published", "AS PUBLISHED 64", ""] in table
    assert families.table("score", ["dense", "locks 64"], str) == []


def test_many_methods_are_compared_at_a_size_with_what_has_none():
    groups = dict(families.groups(list(METHODS)))
    assert list(groups) == [64, 128, 256] and len(groups[64]) == len(SELECTORS) + 1
    assert "dense" in groups[64] and "random 256" in groups[256] and "random 256" not in groups[64]


def test_a_family_is_a_row(made):
    score = next(table for table in made.overview_families() if table[0][0] == "score")
    assert score[0] == ["score", "64", "128", "256"] and [row[0] for row in score[1:]] == [*SELECTORS, "dense", "random"]
    overview = {row.method: row.score for row in made.overview}
    assert score[1][1:] == [f"{overview[f'locks {size}']:.3f}" for size in SIZES]
    short, whole = made.task_tables(made.tasks[0])
    assert whole[1][whole[0].index("perplexity")] == f"{math.exp(2):.4f}"
    # The mean of 1 + row % 3 over 8 rows is 15 / 8.
    assert short[0][0] == "KL" and short[1][1] == f"{15 / 8 / 64:.4f}" and len(whole) == len(METHODS) + 1


def test_a_family_is_a_line_with_one_label(made):
    (svg,) = [svg for caption, svg in made.overview_plots() if caption.startswith("KL")]
    assert svg.count("<polyline") == len(SELECTORS)
    labels = re.findall(r'class="label"[^>]*>([^<]*)<', svg)
    assert labels.count("locks") == 1 and "random 256" in labels and not any(label.startswith("locks ") for label in labels)
    # Few points have their own names, and are joined just the same.
    point = {"family": "locks", "selector": "locks", "low": None, "high": None}
    svg = plots.scatter([{**point, "label": f"locks {n}", "x": n, "y": 1 / n} for n in (1, 2)], "x", "y")
    assert svg.count("<polyline") == 1 and "locks 1<" in svg and "locks 2<" in svg


def test_positions_are_drawn_for_each_size(made):
    captions = [caption for caption, _ in made.task_plots(made.tasks[0])]
    assert [caption for caption in captions if "by position" in caption] == [
        f"KL to dense by position, a running mean, {size}" for size in SIZES
    ]


def test_the_page_folds_long_tables_and_keeps_the_order_of_the_tasks(made):
    report.write(made.folder)
    page = (Path(made.folder) / "report.html").read_text(encoding="utf-8")
    assert page.count("<details><summary>All 23 methods") == 3
    assert [task.label for task in made.tasks] == ["kl 300", "tiny/passkey 400"]


def test_long_curves_are_drawn_with_no_more_points_than_can_be_seen():
    svg = plots.curves([{"label": "locks", "selector": "locks", "values": [0.1, 0.2] * 5000}], "token", "KL")
    (points,) = re.findall(r'<polyline points="([^"]*)"', svg)
    assert plots.DRAWN_POSITIONS <= len(points.split()) < 2 * plots.DRAWN_POSITIONS
