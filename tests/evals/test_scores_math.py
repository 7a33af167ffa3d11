"""Boxed answers, and which of them are equal."""

import json
import os
from pathlib import Path

import pytest

import task_helpers  # noqa: F401
import scores_math as math


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{1} and then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{7}", "7"),
        (r"\boxed 9", "9"),
        (r"\boxed{\text{a {b} c}}", r"\text{a {b} c}"),
        (r"\boxed{\frac{1}{2", None),
        ("no box", None),
    ],
)
def test_the_last_box(text, expected):
    assert math.boxed(text) == expected


EQUAL = [
    (r"\frac43", r"\frac{4}{3}"),
    (r"\dfrac 59", "5/9"),
    (r"\tfrac{270}7\text{ degrees}", r"\frac{270}{7}"),
    (r"\frac{\frac12}{3}", r"\frac{\frac{1}{2}}{3}"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    ("0.5", r"\frac12"),
    (".5", "0.50"),
    ("-.5", "-1/2"),
    ("070", "70"),
    ("2/4", "1/2"),
    (r"\sqrt3", r"\sqrt{3}"),
    (r"90^\circ", "90"),
    (r"90^{\circ}", "90°"),
    (r"864 \mbox{ inches}^2", "864"),
    (r"5.4 \text{ cents}", "5.4"),
    (r"\$32,\!348", "32348"),
    ("10,080", r"10,\!080"),
    (r"50\%", "50"),
    (r"\text{Evelyn}", "evelyn"),
    (r"\text{(C)}", "C"),
    ("x=5", "5"),
    (r"x \in [-2,7]", "[-2,7]"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
    ("(1/2, 0.25)", r"(\frac12, \frac14)"),
    ("1,-2", "-2, 1"),
    (r"\{2, 1\}", r"\{1,2\}"),
    ("4210_{5}", "4210_5"),
    ("x^{2}", "x^2"),
    (r"\begin{pmatrix} -1/3 \\ 2 \end{pmatrix}", r"\begin{pmatrix}-\frac{1}{3}\\2\end{pmatrix}"),
    ("$7$.", "7"),
]
DIFFERENT = [
    ("5", "6"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "1,2"),
    ("1,2", "1,2,2"),
    (r"\frac12", "12"),
    (r"\frac{1}{2}", r"\frac{2}{1}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}12\end{pmatrix}"),
    (r"2\sqrt{2}", r"\sqrt{8}"),  # nothing is simplified
    ("4210_5", "4210_6"),
    ("-5", "5"),
    ("x", "y"),
    (r"\infty", "5"),
    ("", "5"),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_answers(one, other):
    assert math.equal(one, other) and math.equal(other, one)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_answers(one, other):
    assert not math.equal(one, other) and not math.equal(other, one)


def test_an_answer_without_a_whole_box_is_wrong():
    assert math.score(r"thus \boxed{\frac12}", ["0.5"]) == 1.0
    assert math.score("thus 0.5", ["0.5"]) == 0.0
    assert math.score(r"thus \boxed{0.5", ["0.5"]) == 0.0


@pytest.mark.parametrize("inside", ["(" * 900, "{" * 400 + "}" * 400, r"\frac" * 180, "9" * 6000, "1," * 400])
def test_whatever_is_in_the_box_is_scored(inside):
    assert math.score(rf"\boxed{{{inside}}}", ["5"]) == 0.0


def test_every_published_solution_ends_with_its_answer():
    folder = os.environ.get("LOCKS_TEST_DATA")
    if not folder or not (Path(folder) / "math500.jsonl").exists():
        pytest.skip("LOCKS_TEST_DATA names no folder with math500.jsonl")
    lines = (Path(folder) / "math500.jsonl").read_text(encoding="utf-8").splitlines()
    for record in map(json.loads, lines):
        assert math.score(record["solution"], [record["answer"]]) == 1.0, record["answer"]
