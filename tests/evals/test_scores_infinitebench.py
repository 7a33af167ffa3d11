"""InfiniteBench's metrics on values worked by hand."""

import pytest

import task_helpers  # noqa: F401
import scores_infinitebench as infinitebench
from tasks.infinitebench import TASKS


def test_every_task_has_a_metric():
    assert len(TASKS) == 12
    assert set(infinitebench.METRICS) == set(TASKS)


CASES = [
    ("passkey", " 71432. Remember", ["71432"], 1.0),
    ("passkey", "1 71432", ["71432"], 0.0),
    ("passkey", "714321", ["71432"], 0.0),
    ("passkey", "none", ["71432"], 0.0),
    ("number_string", "is 0011223345", ["0011223345"], 1.0),
    ("number_string", "11223345", ["0011223345"], 0.0),
    ("kv_retrieval", '"0a-1b", as asked', ["0a-1b"], 1.0),
    ("kv_retrieval", "x0a-1b", ["0a-1b"], 0.0),
    ("code_run", "The return value is: -17.", ["-17"], 1.0),
    ("code_run", "-17 is the value", ["-17"], 0.0),
    ("code_run", "17", ["-17"], 0.0),
    ("code_run", "", ["-17"], 0.0),
    ("code_run", "9" * 5000, ["9"], 0.0),
    ("math_find", "It is 98, I think 99", ["98"], 1.0),
    ("math_find", "49.5", ["49.5"], 1.0),
    ("math_find", "50.0", ["50"], 1.0),
    ("math_find", "49", ["49.5"], 0.0),
    ("math_find", "the largest", ["98"], 0.0),
    ("math_calc", "[7, 4, 9]", ["7", "4", "10", "9"], 0.5),  # what follows the first difference does not count
    ("math_calc", "8, 4", ["7", "4"], 0.0),
    ("math_calc", "07 4", ["7", "4"], 1.0),
    ("math_calc", "7", ["7", "4"], 0.5),
    ("code_debug", "B. parse", ["parse", "B"], 1.0),
    ("code_debug", "B: parse", ["parse", "B"], 1.0),
    ("code_debug", "B", ["parse", "B"], 0.0),  # as published: a stop or colon must follow
    ("code_debug", "I think the answer is: parse", ["parse", "B"], 1.0),
    ("code_debug", "the correct option is:\nB", ["parse", "B"], 1.0),
    ("code_debug", "the answer is: C", ["parse", "B"], 0.0),
    ("code_debug", "the answer is:", ["parse", "B"], 0.0),
    ("longbook_choice_eng", "C", ["a boat", "C"], 1.0),
    ("longbook_choice_eng", "Certainly A", ["a boat", "C"], 1.0),  # as published: the first letter alone
    ("longbook_choice_eng", "a boat", ["a boat", "C"], 1.0),
    ("longbook_choice_eng", "the answer is C", ["a boat", "C"], 1.0),
    ("longbook_choice_eng", "the answer is D", ["a boat", "C"], 0.0),
    ("longbook_choice_eng", "it must be C", ["a boat", "C"], 1.0),
    ("longbook_choice_eng", "it must be D or C", ["a boat", "C"], 0.0),
    ("longbook_choice_eng", "no idea", ["a boat", "C"], 0.0),
    ("longbook_choice_eng", "", ["a boat", "C"], 0.0),
    ("longdialogue_qa_eng", "It is Ace.", ["ACE", "ACE ROTHSTEIN"], 1.0),
    ("longdialogue_qa_eng", "Rothstein", ["ACE", "ACE ROTHSTEIN"], 0.0),
    ("longbook_qa_eng", "the black cat", ["dog", "cat"], 2 / 3),
    ("longbook_qa_chn", "2008 年", ["2009年"], 0.8),
    ("longbook_sum_eng", "cat", ["cat\ncat"], 2 / 3),
]


@pytest.mark.parametrize(("task", "answer", "references", "expected"), CASES)
def test_a_metric(task, answer, references, expected):
    assert infinitebench.METRICS[task](answer, references) == pytest.approx(expected)


def test_every_task_has_a_case_that_is_right_and_one_that_is_not():
    right = {task for task, _, _, expected in CASES if expected > 0}
    wrong = {task for task, _, _, expected in CASES if expected < 1}
    assert right == wrong == set(TASKS)
