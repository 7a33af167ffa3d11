"""LongBench's metrics on values worked by hand."""

import pytest

import task_helpers  # noqa: F401
import scores_longbench as longbench
from tasks.longbench import SETS


def test_every_set_has_a_metric():
    assert len(SETS) == 21
    assert set(longbench.METRICS) == set(SETS)


def test_the_best_reference_counts():
    assert longbench.score("hotpotqa", "a dog", ["cat", "dog"]) == 1.0
    assert longbench.score("hotpotqa", "a dog", ["cat"]) == 0.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("There are 12.", 1.0), ("12 or 13", 0.5), ("Between 1 and 12, maybe 2", 1 / 3), ("twelve", 0.0), ("112", 0.0)],
)
def test_passage_count(answer, expected):
    assert longbench.score("passage_count", answer, ["12"]) == pytest.approx(expected)


def test_passage_retrieval():
    assert longbench.score("passage_retrieval_en", "Paragraph 7", ["Paragraph 7"]) == 1.0
    assert longbench.score("passage_retrieval_en", "7, not 17", ["Paragraph 7"]) == 0.5
    assert longbench.score("passage_retrieval_zh", "段落7", ["段落7"]) == 1.0
    assert longbench.score("passage_retrieval_zh", "段落8", ["段落7"]) == 0.0


CLASSES = ["Food", "Animal", "Other entity", "entity"]


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        ("Food", "Food", 1.0),
        ("Food or Animal", "Food", 0.5),
        ("Animal", "Food", 0.0),
        ("Other entity", "Other entity", 1.0),  # `entity` is part of the right name
        ("Other entity", "entity", 0.5),  # but not the other way round
    ],
)
def test_classification(answer, truth, expected):
    assert longbench.score("trec", answer, [truth], CLASSES) == expected


def test_classification_skips_the_name_behind_a_dropped_one():
    # Of `a`, `ab` and `abc`, `a` is dropped and `ab` is then not looked at, so two are left.
    assert longbench.score("lsht", "abc", ["abc"], ["a", "ab", "abc"]) == 0.5


def test_few_shot_answers_end_with_their_line():
    assert longbench.score("triviaqa", "\n\nParis\nQuestion: no", ["Paris"]) == 1.0
    assert longbench.score("trec", "Food\nAnimal", ["Food"], CLASSES) == 1.0
    assert longbench.score("hotpotqa", "Paris\nno", ["Paris"]) == pytest.approx(2 / 3)


def test_code_is_the_first_line_that_is_no_comment():
    assert longbench.score("lcc", "\n```python\n# comment\nreturn x\nmore", ["return x"]) == 1.0
    assert longbench.score("repobench-p", "// only comments", ["return x"]) == 0.0
    assert longbench.score("lcc", "abcd", ["bcde"]) == 0.75


def test_summaries_are_scored_by_the_language():
    assert longbench.score("gov_report", "police kill the gunman", ["police killed the gunman"]) == pytest.approx(0.75)
    assert longbench.score("vcsum", "我很爱你", ["我爱你"]) == pytest.approx(6 / 7)
    assert longbench.score("multifieldqa_zh", "北京。", ["北京"]) == 1.0
