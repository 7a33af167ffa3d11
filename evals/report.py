#!/usr/bin/env python3
"""The report of a run: report.html, one file that needs no network, and report.md, made of results.jsonl.

python evals/report.py FOLDER [--pictures FOLDER]
"""

from __future__ import annotations

import argparse
import re
import sys
from html import escape
from pathlib import Path

import families
import head_coverage
import plots
import report_facts
import summary
from config import ConfigError
from page import PAGE, figures, folded, html_table, markdown_table, picture_file
from results import load_results, load_run

NONE = "–"


def number(value, text="{:.3g}"):
    if value is None:
        return NONE
    return text.format(value.mean if isinstance(value, summary.Number) else value)


def interval(value, text="{:.3g}"):
    return f"{text.format(value.low)} to {text.format(value.high)}" if value and value.low is not None else ""


def percent(value):
    return NONE if value is None else f"{100 * value:.1f}"


def fixed(value):
    """Four decimals for what is small, as divergences are, without the exponents of short forms."""
    return "{:.4f}" if value is None or abs(value.mean if isinstance(value, summary.Number) else value) < 10 else "{:.1f}"


class Report:
    def __init__(self, folder):
        self.folder = Path(folder)
        described = load_run(folder)
        self.identity, self.run = described["identity"], described["run"]
        self.config = self.identity["config"]
        self.methods = list(self.config["methods"])
        self.of_families = {method for members in families.families(self.methods).values() for method in members.values()}
        self.endpoints = self.run.get("endpoints")
        self.results = load_results(self.folder / "results.jsonl")
        if not self.results:
            raise ConfigError(f"{self.folder} has no results yet")
        order = list(self.identity["prompts"])  # several jobs begin with the longest
        self.tasks = sorted(summary.summarize(self.results, self.methods), key=lambda task: order.index(task.label))
        self.overview = summary.overview(self.tasks, self.methods)
        self.grids = summary.grids(self.results, self.methods)
        self.coverages = head_coverage.by_method(summary.latest(self.results), self.methods)
        self.facts = list(report_facts.lines(self.identity, self.run))
        self.expected = len(self.methods) * self.run["prompts"]
        self.there = sum("failed" not in row for row in summary.latest(self.results))
        self.failed = [row for row in summary.latest(self.results) if "failed" in row]

    def selector(self, method):
        return self.config["methods"][method].get("selector", "locks")

    # Tables, as rows of texts; the first row is the header.

    def overview_table(self):
        used = [column for column in OVERVIEW_COLUMNS if any(getattr(row, column[1]) is not None for row in self.overview)]
        table = [["method", *(title for title, _, _ in used)]]
        for row in self.overview:
            values = [(getattr(row, key), text) for _, key, text in used]
            table.append([row.method, *(percent(value) if text is None else number(value, text) for value, text in values)])
        return table

    def task_table(self, task):
        columns = [task.score_title, "95 %"]
        columns += ["first quarter", "last quarter", "tokens replayed", "ended early, %"] if task.name == "replay" else []
        columns += [] if task.diverges else ["KL"]
        columns += ["perplexity"] if task.name == "kl" else []
        columns += ["same token, %", "tokens attended", "bytes, % of dense", "to choose, %", "memory, % of dense"]
        columns += ["held besides, %", "coverage, %", "new tokens", "cut off, %", "ms a step", "s a request", "samples"]
        table = [["method", *columns]]
        for cell in task.cells:
            score_text = fixed(cell.score) if task.forced else "{:.3f}"
            row = [cell.method, number(cell.score, score_text), interval(cell.score, score_text)]
            if task.name == "replay":
                row += [number(quarter, fixed(quarter)) for quarter in (cell.first_quarter, cell.last_quarter)]
                row += [number(cell.replayed, "{:,.0f}"), percent(cell.ended_early or None)]
            if not task.diverges:
                row.append(number(cell.kl, "{:.4f}"))
            if task.name == "kl":
                row.append(number(cell.perplexity, fixed(cell.perplexity)))
            row += [
                percent(cell.same),
                number(cell.attended, "{:,.0f}"),
                percent(cell.bytes_share),
                percent(cell.score_share),
            ]
            memory = None if cell.cache_share is None else cell.cache_share + cell.held_share
            row += [percent(memory), percent(cell.held_share), percent(cell.coverage)]
            # Elsewhere the lengths of answers are given, and say nothing.
            long = task.name.startswith("math/")
            row += [number(cell.new_tokens, "{:,.0f}") if long else NONE, percent(cell.cut_off if long else None)]
            row.append(number(None if cell.step_seconds is None else 1000 * cell.step_seconds, "{:.1f}"))
            row.append(number(cell.request_seconds, "{:.1f}"))
            row.append(f"{cell.samples}" + (f" ({cell.failed} failed)" if cell.failed else ""))
            table.append(row)
        empty = [i for i in range(len(table[0])) if i and all(row[i] in ("", NONE) for row in table[1:])]
        return [[text for i, text in enumerate(row) if i not in empty] for row in table]

    def overview_families(self):
        """Tables of all tasks by family and number."""
        rows = {row.method: row for row in self.overview}
        for title, key, text in OVERVIEW_COLUMNS:
            if key in BY_FAMILY:
                yield self.family_table(title, {method: getattr(row, key) for method, row in rows.items()}, text)

    def task_families(self, task):
        texts = {cell.method: fixed(cell.score) if task.forced else "{:.3f}" for cell in task.cells}
        scores = {cell.method: cell.score for cell in task.cells}
        return families.table(
            task.score_title, self.methods, lambda method: number(scores.get(method), texts.get(method, "{}"))
        )

    def task_tables(self, task):
        """The table of all methods, and one by family before it where there are many."""
        short = self.task_families(task) if len(self.methods) > families.MANY else []
        return [*filter(None, [short]), self.task_table(task)]

    def fold(self, table):
        return folded(f"All {len(self.methods)} methods", table) if len(self.methods) > families.MANY else table

    def family_table(self, title, values, text):
        def text_of(method):
            value = values.get(method)
            return "" if value is None else percent(value) if text is None else number(value, text)

        return families.table(title, self.methods, text_of)

    def state(self):
        """What is not as it should be, for the top of the page."""
        notes = []
        if self.there < self.expected:
            notes.append(f"Unfinished: {self.there} of {self.expected} results.")
        if self.failed:
            first = self.failed[0]
            notes.append(
                f"{len(self.failed)} failed and count for nothing; the first: "
                f"{first['task']}, {first['method']}: {first['failed']}."
            )
        if self.identity.get("rope_scale"):
            notes.append(f"Positions are {report_facts.stretched(self.identity, self.run)}.")
        return notes

    def markdown(self):
        parts = [*(f"**{note}**\n" for note in self.state())]
        if len(self.tasks) > 1:
            tables = [*filter(None, self.overview_families()), self.overview_table()]
            parts += ["### All tasks\n", *(part for table in tables for part in (markdown_table(table), ""))]
        for task in self.tasks:
            parts.append(f"### {task.label}\n")
            parts += [part for table in self.task_tables(task) for part in (markdown_table(table), "")]
        if self.coverages:
            parts += [f"### {COVERAGE_TITLE}\n", markdown_table(head_coverage.table(self.coverages)), ""]
        parts += ["### What was run\n", *(f"- {key}: `{value}`" for key, value in self.facts), ""]
        parts += [markdown_table(report_facts.settings_table(self.config), numbers=False), ""]
        return "\n".join(parts)

    def html(self):
        return PAGE.format(title=escape(self.title()), body="\n".join(self.sections()))

    def title(self):
        if self.endpoints:
            return f"{', '.join(self.methods)} on the same prompts"
        return f"LOCKS and its rivals on {self.run['model_path']}"

    def sections(self):
        yield from (f'<p class="note">{escape(note)}</p>' for note in self.state())
        if len(self.tasks) > 1:
            yield "<h2>All tasks</h2>"
            yield (
                "<p>Means over tasks, each of the same weight. Bytes: what decode steps read, to choose and to attend. "
                "Memory: the cache and what is held beside it. Both in % of dense attention over an f16 cache.</p>"
            )
            yield from map(html_table, filter(None, self.overview_families()))
            yield self.fold(html_table(self.overview_table()))
            yield figures(self.overview_plots())
        for task in self.tasks:
            yield f"<h2>{escape(task.label)}</h2>"
            *short, whole = self.task_tables(task)
            yield from map(html_table, short)
            yield self.fold(html_table(whole))
            yield figures(self.task_plots(task))
        for name, grids in self.grids.items():
            yield f"<h2>{escape(name)}: by length and depth</h2>"
            yield "<p>Mean scores; down: where in the context the needle is.</p>"
            yield '<div class="grids">' + "".join(plots.heat_map(grid) for grid in grids) + "</div>"
        if self.coverages:
            low = head_coverage.scale(self.coverages)
            yield f"<h2>{COVERAGE_TITLE}</h2>"
            yield (
                "<p>Which share of the attention mass was attended in decode steps, by each method's own estimate: means "
                f"over all results. Palest: {100 * low:.0f} %, darkest: 100 %.</p>"
            )
            yield html_table(head_coverage.table(self.coverages))
            maps = (head_coverage.picture(coverage, low) for coverage in self.coverages)
            yield '<div class="grids">' + "".join(maps) + "</div>"
        yield "<h2>What was run</h2>"
        rows = "".join(
            f"<tr><th>{escape(key)}</th><td><code>{escape(value)}</code></td></tr>" for key, value in self.facts
        )
        yield f'<div class="scroll"><table class="facts">{rows}</table></div>'
        yield html_table(report_facts.settings_table(self.config), numbers=False)

    def pictures(self):
        """Pairs of a name and a picture."""
        yield from ((f"all {caption}", svg) for caption, svg in self.overview_plots() if svg)
        for task in self.tasks:
            yield from ((f"{task.label} {caption}", svg) for caption, svg in self.task_plots(task) if svg)
        for name, grids in self.grids.items():
            yield from ((f"{name} {grid.method}", plots.heat_map(grid)) for grid in grids)
        for coverage in self.coverages:
            yield f"coverage {coverage.method}", head_coverage.picture(coverage, head_coverage.scale(self.coverages))

    def point(self, method, share, y, low=None, high=None):
        family = families.split(method)[0] if method in self.of_families else None
        who = {"label": method, "family": family, "selector": self.selector(method)}
        return {**who, "x": 100 * share, "y": y, "low": low, "high": high}

    def overview_plots(self):
        made = []
        for key, title, log in (("score", "score", False), ("kl", "KL of a text, nats", True)):
            rows = [row for row in self.overview if getattr(row, key) is not None and row.bytes_share]
            if len(rows) > 1:
                points = [self.point(row.method, row.bytes_share, getattr(row, key)) for row in rows]
                made.append((f"{title} against bytes, all tasks", plots.scatter(points, BYTES_TITLE, title, log)))
        return made

    def task_plots(self, task):
        points = []
        for cell in task.cells:
            if cell.score and cell.bytes_share:
                points.append(self.point(cell.method, cell.bytes_share, cell.score.mean, cell.score.low, cell.score.high))
        title = "KL, nats" if task.diverges else task.score_title
        if len(points) > 1:
            yield f"{title} against bytes", plots.scatter(points, BYTES_TITLE, title, task.diverges)
        for size, methods in families.groups(self.methods):
            of = "" if size is None else f", {size}"
            if lines := self.lines(task, "curve", 1, methods):
                yield f"KL to dense by position, a running mean{of}", plots.curves(lines, "forced token", "KL, nats")
            if lines := self.lines(task, "same_curve", 100, methods):
                caption = f"Positions whose likeliest token is that of dense attention, a running mean{of}"
                yield caption, plots.curves(lines, "replayed token", "same token, %", False)

    def lines(self, task, key, scale, methods):
        curves = [(cell.method, getattr(cell, key)) for cell in task.cells if getattr(cell, key) and cell.method in methods]
        return [
            {"label": method, "selector": self.selector(method), "values": [scale * value for value in values]}
            for method, values in curves
        ]


OVERVIEW_COLUMNS = [
    ("score", "score", "{:.3f}"),
    ("KL, text", "kl", "{:.4f}"),
    ("KL, questions", "question_kl", "{:.4f}"),
    ("bytes, % of dense", "bytes_share", None),
    ("memory, % of dense", "memory_share", None),
    ("tokens attended", "attended", "{:,.0f}"),
    ("coverage, % estimated", "coverage", None),
]
BY_FAMILY = ("score", "kl", "question_kl", "bytes_share")
COVERAGE_TITLE = "Coverage by layer and KV head"
BYTES_TITLE = "bytes that a step reads, % of dense"


def write(folder, pictures=None):
    """Writes both files, and every picture alone into the folder `pictures`. Returns the Markdown."""
    report = Report(folder)
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
        for name, svg in report.pictures():
            (pictures / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.svg").write_text(picture_file(svg), "utf-8")
    text = report.markdown()
    (report.folder / "report.md").write_text(text, encoding="utf-8")
    (report.folder / "report.html").write_text(report.html(), encoding="utf-8")
    return text + f"\nwrote {report.folder / 'report.html'} and report.md"


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="evals/report.py", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder of a run, finished or not")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="write every picture there, too, as an SVG file")
    parsed = parser.parse_args(arguments)
    print(write(parsed.folder, parsed.pictures))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ConfigError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        sys.exit(1)
