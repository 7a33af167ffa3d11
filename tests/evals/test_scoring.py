"""RULER's scores, and that each task is scored by its own rule."""

import pytest

import task_helpers  # noqa: F401
import scoring
from sample import Sample
from tasks import published, retrieval, ruler


def sample(task, *answers, **details):
    return Sample(task, 0, "", "", answers, 1, details=details)


def test_match_all_is_the_share_that_occurs():
    assert scoring.match_all("It is ABC and 12.", ["abc", "12", "13"]) == pytest.approx(2 / 3)
    assert scoring.match_all("", ["abc"]) == 0.0


def test_match_part_is_whether_any_occurs():
    assert scoring.match_part("It is ABC.", ["abc", "12"]) == 1.0
    assert scoring.match_part("It is AB.", ["abc", "12"]) == 0.0


def test_questions_need_one_answer_and_lists_all():
    assert scoring.score(sample("ruler/qa_1", "Paris", "the city of Paris"), "Paris") == 1.0
    assert scoring.score(sample("ruler/vt", "ABC", "DEF"), "ABC") == 0.5


@pytest.mark.parametrize(
    ("task", "answers", "details", "right"),
    [
        ("retrieval/needle", ["1234567"], {}, " 1234567."),
        ("retrieval/passkey", ["12345"], {}, " 12345."),
        ("retrieval/code_run", ["-3"], {}, " -3"),
        ("infinitebench/longbook_choice_eng", ["a boat", "C"], {}, "C"),
        ("longbench/trec", ["Food"], {"classes": ["Food", "Animal"]}, "Food"),
        ("longbench/qasper", ["cat"], {}, "The cat"),
        ("math/aime", ["70"], {}, r"\boxed{070}"),
    ],
)
def test_each_family_has_its_rule(task, answers, details, right):
    assert scoring.score(sample(task, *answers, **details), right) == 1.0
    assert scoring.score(sample(task, *answers, **details), "nothing") == 0.0


def test_every_task_can_be_scored():
    names = [
        *(f"ruler/{name}" for name in ruler.TASKS),
        *(f"retrieval/{name}" for name in retrieval.TASKS),
        *published.TASKS,
    ]
    assert len(names) == len({*names}) == 13 + 6 + 21 + 12 + 2
    for name in names:
        assert scoring.score(sample(name, "1", "A", classes=["1"]), "") == 0.0


def test_an_unknown_task_is_named():
    with pytest.raises(ValueError, match="no rule to score the task 'other/task'"):
        scoring.score(sample("other/task", "1"), "1")
