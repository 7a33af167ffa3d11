"""InfiniteBench: its twelve tasks from the published files, in prompts of the form published for models without chat."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from sample import Sample
from tasks import records
from tasks.errors import TaskError

# New tokens of each task, as published.
TASKS = {
    "passkey": 6,
    "number_string": 12,
    "kv_retrieval": 50,
    "longbook_sum_eng": 1200,
    "longbook_choice_eng": 40,
    "longbook_qa_eng": 40,
    "longbook_qa_chn": 40,
    "longdialogue_qa_eng": 40,
    "math_find": 3,
    "math_calc": 30000,
    "code_run": 5,
    "code_debug": 5,
}
LETTERS = "ABCD"
HIDDEN = "Something important is hidden in a lot of text that does not matter. Find it, you will be asked about it."
EXPRESSIONS = """Calculate the value of an expression after each of its operations.

Expression: 2 + 5 - 3
Values: [7, 4]

Expression: 9 - 4 + 1 - 6
Values: [5, 6, 0]

Expression: """


def read(name: str, path: str | Path, *, limit: int | None = None) -> list[Sample]:
    """The samples of one task."""
    if name not in TASKS:
        raise TaskError(f"no task {name!r} in InfiniteBench; there are {', '.join(TASKS)}")
    return [_sample(name, index, record) for index, record in enumerate(records.read(path, limit))]


def _sample(name: str, index: int, record: records.Record) -> Sample:
    before, question, prefix = FORMS[name](record)
    text = record.text("context", "content")
    return Sample(
        task=f"infinitebench/{name}",
        index=index,
        context=f"{before}{text}\n\n",
        question=question,
        answers=_answers(name, record),
        new_tokens=TASKS[name],
        prefix=prefix,
        details={"id": record.members.get("id", index)},
    )


def _answers(name: str, record: records.Record) -> tuple[str, ...]:
    answer = record.any("answer")
    values = answer if isinstance(answer, list) else [answer]
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not values or any(isinstance(value, (dict, list, bool)) or value is None for value in values):
        raise record.error("expected a text, a number or a list of them in 'answer'")
    if name in ("code_debug", "longbook_choice_eng"):
        return _option(values, record)
    if name in ("math_find", "math_calc", "code_run"):
        _check_numbers(values, record)
    return tuple(str(value) for value in values)


def _check_numbers(values: list, record: records.Record) -> None:
    for value in values:
        try:
            float(value)
        except ValueError as error:
            raise record.error(f"expected numbers in 'answer', got {value!r}") from error


def _option(values: list, record: records.Record) -> tuple[str, str]:
    """The right option's text and letter."""
    options = _options(record)
    if len(values) == 2 and values[1] in list(LETTERS):
        return str(values[0]), str(values[1])
    if values[0] not in options:
        raise record.error(f"the answer {values[0]!r} is none of the options")
    return str(values[0]), LETTERS[options.index(values[0])]


def _options(record: records.Record) -> list[str]:
    options = record.texts("options")
    if len(options) != len(LETTERS):
        raise record.error(f"expected {len(LETTERS)} options, got {len(options)}")
    return options


def _listed(record: records.Record) -> str:
    return "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, _options(record)))


# What stands before the context, what stands behind it, and how the answer begins.
Form = Callable[[records.Record], tuple[str, str, str]]


def _hidden(prefix: str) -> Form:
    return lambda record: (f"{HIDDEN}\n\n", f"{record.text('input')}\n", prefix)


def _key_value(record: records.Record):
    return "Find the value of a key in the JSON object below.\n\n", record.text("input"), ""


def _choice(record: records.Record):
    question = f"Question: {record.text('input')}\n{_listed(record)}\n\n"
    return "Read the book and answer the question.\n\n", question, "The letter of the correct answer is"


def _find(record: records.Record):
    """The question names what is looked for: `The second largest number of the list is:`."""
    asked = record.text("input")
    wanted = re.search(r"The (.+) of", asked)
    if wanted is None:
        raise record.error("expected 'The ... of' in 'input'")
    return f"Which is the {wanted[1]} of the following list?\n\n", asked, ""


def _run(record: records.Record):
    call = re.search(r"(func_\d+)\(-?\d+\)", record.text("input"))
    if call is None:
        raise record.error("expected a call such as func_1(2) in 'input'")
    before = f"There is a function {call[1]} in the following Python code.\n\n"
    return before, f"Work out the exact value of {call[0]}.\n", f"The value of {call[0]} is"


def _debug(record: records.Record):
    before = "One of the functions or methods of the following Python code has an error that makes it crash.\n\n"
    question = f"Which one is it? Write the option's letter, a full stop and its name.\n{_listed(record)}\n\n"
    return before, question, "The correct option is:"


def _dialogue(record: records.Record):
    before = 'In the following script a character\'s name was once replaced by "$$MASK$$". Whose name is it?\n\n'
    return before, "", "The name that was replaced by $$MASK$$ is"


FORMS: dict[str, Form] = {
    "passkey": _hidden("The pass key is"),
    "number_string": _hidden("The sequence of digits is"),
    "kv_retrieval": _key_value,
    "longbook_sum_eng": lambda record: ("Summarise the following book.\n\n", "", "Summary:"),
    "longbook_choice_eng": _choice,
    "longbook_qa_eng": lambda record: (
        "Read the book and answer the question in as few words as you can.\n\n",
        f"Question: {record.text('input')}\n",
        "Answer:",
    ),
    "longbook_qa_chn": lambda record: ("请阅读下面的书，然后回答问题。\n\n", f"问题：{record.text('input')}\n", "答案："),
    "longdialogue_qa_eng": _dialogue,
    "math_find": _find,
    "math_calc": lambda record: (EXPRESSIONS, "", "Values:"),
    "code_run": _run,
    "code_debug": _debug,
}
