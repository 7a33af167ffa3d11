"""The report of a run, its numbers and its pictures."""

import html.parser
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import fake_engine
from fake_engine import TABLES, make_run

import head_coverage  # noqa: E402
import plots  # noqa: E402
import report  # noqa: E402
import summary  # noqa: E402
from config import ConfigError  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    fake_engine.use_tiny_tasks(patch)
    path = tmp_path_factory.mktemp("run")
    make_run(path).go()
    patch.undo()
    report.write(path / "out")
    return path / "out"


def page(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def pictures(folder):
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page(folder), re.DOTALL)]


def test_the_page_is_whole_and_needs_no_network(folder):
    class Checker(html.parser.HTMLParser):
        open_tags, tags = [], set()

        def handle_starttag(self, tag, attributes):
            self.tags.add(tag)
            assert not {"src", "href", "srcset"} & dict(attributes).keys()
            if tag != "meta":
                self.open_tags.append(tag)

        def handle_startendtag(self, tag, attributes):
            self.tags.add(tag)

        def handle_endtag(self, tag):
            assert self.open_tags.pop() == tag

    checker = Checker()
    checker.feed(page(folder))
    assert not checker.open_tags and {"table", "svg", "circle", "polyline", "rect"} <= checker.tags
    assert "script" not in checker.tags and "url(" not in page(folder) and "@import" not in page(folder)
    assert "prefers-color-scheme: dark" in page(folder)
    assert "quest &lt;64&gt;" in page(folder) and "quest <64>" not in page(folder)


def test_both_files_say_what_was_run(folder):
    for text in (page(folder), (folder / "report.md").read_text(encoding="utf-8")):
        for piece in ("a command", "model.gguf", "fake 1", "question-sparse", "tiny/passkey 400", "budget_tokens = 128"):
            assert piece in text


def test_the_markdown_table_holds_the_means(folder):
    text = (folder / "report.md").read_text(encoding="utf-8")
    part = text.split("### tiny/passkey 400")[1].split("###")[0]
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in part.splitlines()[2:]
        if line
    }
    header = rows["method"]
    locks = dict(zip(header, rows["locks 128"]))
    assert locks["score"] == "0.333" and locks["95 %"] == "0.000 to 0.667" and locks["tokens attended"] == "128"
    # 398 words of context: a sixteenth of them read to choose, rounded down, and 128 attended.
    assert locks["bytes, % of dense"] == f"{100 * (398 / 16 + 128) / 398:.1f}" and locks["samples"] == "6"
    assert dict(zip(header, rows["dense"]))["score"] == "1.000"
    part = text.split("### kl 300")[1].split("###")[0]
    assert "95 %" not in part  # of two samples nothing can be said


def test_pictures_are_files_of_their_own(folder, tmp_path):
    command = [sys.executable, report.__file__, str(folder), "--pictures", str(tmp_path / "pictures")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).returncode == 0
    files = sorted((tmp_path / "pictures").iterdir())
    assert len(files) == len(pictures(folder)) and "coverage-locks-128.svg" in {file.name for file in files}
    for file in files:
        root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and "--blue: #" in root[0].text


def test_every_mark_is_inside_its_picture(folder):
    found = pictures(folder)
    assert len(found) >= 2 + 2 + 2 + 3
    for picture in found:
        _, _, width, height = map(float, picture.get("viewBox").split())
        for mark in picture.iter():
            for key, end in (("x", width), ("cx", width), ("x1", width), ("x2", width), ("y", height), ("cy", height)):
                if mark.get(key) is not None:
                    assert 0 <= float(mark.get(key)) <= end, ElementTree.tostring(mark)


def test_a_scatter_places_what_reads_more_to_the_right_and_names_its_axes():
    points = [
        {"label": name, "selector": "locks", "x": x, "y": y, "low": None, "high": None}
        for name, x, y in (("a", 1.0, 0.5), ("b", 10.0, 0.05), ("c", 100.0, 0.0))
    ]
    picture = ElementTree.fromstring(plots.scatter(points, "bytes", "KL", log_y=True))
    marks = [(float(mark.get("cx")), float(mark.get("cy"))) for mark in picture.iter("circle")]
    assert len(marks) == 2  # 0 has no place on a logarithmic axis
    (x_low, y_high), (x_high, y_low) = sorted(marks)
    assert x_low < x_high and y_high < y_low
    words = [text.text for text in picture.iter("text")]
    assert "bytes" in words and "KL" in words and "a" in words and "c" not in words


def test_labels_do_not_lie_on_each_other():
    points = [
        {"label": f"method {i}", "selector": "locks", "x": 10 + 0.01 * i, "y": 0.5, "low": None, "high": None}
        for i in range(12)
    ]
    picture = ElementTree.fromstring(plots.scatter(points, "x", "y"))
    labels = [text for text in picture.iter("text") if text.get("class") == "label"]
    assert len(labels) == 12
    boxes = [(float(t.get("x")), float(t.get("y")), plots.CHARACTER * len(t.text)) for t in labels]
    for i, (x, y, width) in enumerate(boxes):
        for other_x, other_y, other_width in boxes[:i]:
            apart = x + width <= other_x or other_x + other_width <= x or abs(y - other_y) >= plots.LABEL_HEIGHT - 0.11
            assert apart


def test_axes_have_ticks_at_any_scale():
    for low, high in ((0, 1), (0.41, 0.43), (3, 3), (1e-6, 2e-6), (0, 12345)):
        axis = plots.Axis([low, high], 0, 100)
        assert 2 <= len(axis.ticks()) <= 12 and all(-0.1 <= axis(tick) <= 100.1 for tick in axis.ticks())
        if low > 0:
            axis = plots.Axis([low, high], 0, 100, True)
            assert len(axis.ticks()) >= 1 and all(-0.1 <= axis(tick) <= 100.1 for tick in axis.ticks())


def test_the_needle_grid_is_by_length_and_depth(folder):
    grids = summary.grids(report.load_results(folder / "results.jsonl"), list(TABLES["method"]))
    (grid,) = [grid for grid in grids["tiny/passkey"] if grid.method == "quest <64>"]
    assert grid.lengths == [200, 400] and grid.depths[0] == 0 and grid.depths[-1] == 0.9
    assert grid.scores[-1].tolist() == [1, 1] and grid.scores[0].tolist() == [0, 0]
    picture = ElementTree.fromstring(plots.heat_map(grid))
    assert len(list(picture.iter("rect"))) == grid.scores.size
    assert any(title.text.endswith("depth 90%: 1") for title in picture.iter("title"))


def test_intervals_hold_the_mean_and_shrink_with_samples():
    values = np.random.default_rng(3).normal(5, 1, 400)
    few, many = summary.number(values[:20]), summary.number(values)
    assert few.low < few.mean < few.high and many.high - many.low < few.high - few.low
    # The normal approximation of the interval's width.
    assert math.isclose(many.high - many.low, 2 * 1.96 * values.std() / 20, rel_tol=0.1)
    assert summary.number(values) == many and summary.number(values[:4]).low is None


def test_perplexity_is_of_the_mean_logarithm():
    base = {"task": "p", "name": "perplexity", "method": "m", "score": 0.0, "attended_tokens": 1, "dense_bytes": 10}
    base |= {
        "score_bytes": 1,
        "attend_bytes": 2,
        "cache_bytes": 10,
        "held_bytes": 1,
        "coverage": None,
        "seconds": 1.0,
        "steps": 2,
        "details": {},
    }
    rows = [{**base, "index": index, "nll": nll} for index, nll in enumerate((1.0, 3.0))]
    (task,) = summary.summarize(rows, ["m"])
    assert task.cells[0].score.mean == pytest.approx(math.exp(2)) and task.cells[0].bytes_share == pytest.approx(0.3)
    assert task.cells[0].cache_share == 1 and task.cells[0].held_share == pytest.approx(0.1)


def test_means_are_over_the_tasks_that_all_methods_have():
    base = {"name": "kl", "index": 0, "seconds": 1.0, "steps": 2, "details": {}}
    scores = {"easy": {"whole": 0.1, "begun": 0.1}, "hard": {"whole": 0.9}}
    rows = [
        {**base, "task": task, "method": method, "score": score, "kl": score}
        for task, of_task in scores.items()
        for method, score in of_task.items()
    ]
    methods = ["whole", "begun", "waiting"]
    found = {row.method: row.kl for row in summary.overview(summary.summarize(rows, methods), methods)}
    assert found == {"whole": 0.1, "begun": 0.1, "waiting": None}


def test_memory_and_what_is_read_are_in_percent_of_dense(folder):
    part = (folder / "report.md").read_text(encoding="utf-8").split("### kl 300")[1].split("###")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if "|" in line]
    locks = dict(zip(lines[0], next(line for line in lines if line[0] == "locks 128")))
    assert locks["memory, % of dense"] == "112.5" and locks["held besides, %"] == "12.5"


def test_a_replay_shows_drift(folder):
    text = (folder / "report.md").read_text(encoding="utf-8")
    part = text.split("### replay 300")[1].split("###")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if "|" in line]
    locks = dict(zip(lines[0], next(line for line in lines if line[0] == "locks 128")))
    # 1/128, times 1, 2, 3, 1, ...: positions 1 and 2, 7 and 8.
    assert locks["first quarter"] == f"{1.5 / 128:.4f}" and locks["last quarter"] == f"{1.5 / 128:.4f}"
    assert locks["same token, %"] == "75.0" and "temperature 0.5" in text
    shown = page(folder).split("<h2>replay 300")[1].split("<h2>")[0]
    assert shown.count("<figure>") == 3 and "likeliest token is that of dense" in shown


def test_replays_of_unequal_length_are_means_of_those_that_are_as_long():
    base = {"task": "r", "name": "replay", "method": "m", "score": 0.0, "seconds": 1.0, "steps": 2, "details": {}}
    rows = [
        {**base, "index": 0, "kl_positions": [1.0, 2.0, 3.0, 4.0], "same_positions": [1, 1, 0, 0]},
        {**base, "index": 1, "kl_positions": [3.0, 2.0], "same_positions": [0, 1]},
    ]
    cell = summary.summarize(rows, ["m"])[0].cells[0]
    assert cell.curve == [2.0, 2.0, 3.0, 4.0] and cell.same_curve == [0.5, 1.0, 0.0, 0.0]
    assert (cell.first_quarter, cell.last_quarter) == (1.0, 4.0)  # too short a text has no quarters


def test_coverage_is_by_layer_and_head(folder):
    text = (folder / "report.md").read_text(encoding="utf-8").split("### Coverage by layer and KV head")[1]
    assert "| locks 128 | 90.0 | 80.0 | layer 0, head 0 | 80.0 | layer 0 | 0 of 2 |" in text
    assert "| quest" not in text.split("###")[0]
    shown = page(folder).split("<h2>Coverage by layer and KV head")[1].split("<h2>")[0]
    (picture,) = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", shown, re.DOTALL)]
    titles = [title.text for title in picture.iter("title")]
    assert titles == ["locks 128, layer 0, head 0: 80.0%", "locks 128, layer 1, head 0: 100.0%"]


def test_a_layer_that_was_left_to_the_host_has_no_coverage():
    rows = [
        {"method": "m", "coverage_by_head": [[0.5, 0.7], [], [0.4, 0.9]]},
        {"method": "n", "coverage_by_head": [[], []]},
    ]
    (found,) = head_coverage.by_method(rows, ["m", "n"])
    assert found.shares.shape == (3, 2) and np.isnan(found.shares[1]).all()
    (_, row) = head_coverage.table([found])
    assert row == ["m", "62.5", "40.0", "layer 2, head 0", "60.0", "layer 0", "1 of 4"] and head_coverage.scale([found]) == 0.4
    assert len(list(ElementTree.fromstring(head_coverage.picture(found, 0.4)).iter("title"))) == 4


def test_failures_count_for_nothing_and_are_shown(folder, tmp_path):
    copy = tmp_path / "out"
    copy.mkdir()
    (copy / "run.json").write_text((folder / "run.json").read_text())
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    cut = [row for row in rows if not (row["task"] == "tiny/passkey 400" and row["index"] == 5)]
    cut.append(
        {"task": "tiny/passkey 400", "name": "tiny/passkey", "index": 5, "method": "locks 128", "failed": "X: <no> room"}
    )
    (copy / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cut))
    text = report.write(copy)
    assert "Unfinished: 45 of 48 results." in text and "1 failed and count for nothing" in text and "5 (1 failed)" in text
    assert "X: &lt;no&gt; room" in page(copy)


def test_results_of_another_version_are_refused(folder, tmp_path):
    described = json.loads((folder / "run.json").read_text())
    described["identity"]["format"] -= 1
    (tmp_path / "run.json").write_text(json.dumps(described))
    (tmp_path / "results.jsonl").write_text((folder / "results.jsonl").read_text())
    with pytest.raises(ConfigError, match="results of another version .*run it again"):
        report.write(tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read .*run.json"):
        report.write(tmp_path)
    done = subprocess.run([sys.executable, report.__file__, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "run.json" in done.stderr and "Traceback" not in done.stderr
