"""Readers of published files, on tiny files of their formats."""

import json

import pytest

from task_helpers import Counter, prompt, size, write_lines
from tasks import longbench, published
from tasks.errors import TaskError


def longbench_record(name, **changes):
    return {
        "input": "Who?",
        "context": "A long text.",
        "answers": ["Ann", "Ann B."],
        "length": 3,
        "dataset": name,
        "language": "en",
        "all_classes": ["Food", "Animal"] if name in ("trec", "lsht") else None,
        "_id": "0a",
        **changes,
    }


@pytest.mark.parametrize("name", longbench.SETS)
def test_longbench(tmp_path, name):
    path = write_lines(tmp_path / f"{name}.jsonl", longbench_record(name), longbench_record(name, input="", context="Other."))
    first, second = published.read(f"longbench/{name}", path)
    assert (first.task, first.index, second.index) == (f"longbench/{name}", 0, 1)
    assert first.answers == ("Ann", "Ann B.") and first.new_tokens == longbench.SETS[name]
    assert first.context.endswith("A long text.") and second.context.endswith("Other.")
    asks = name not in ("gov_report", "multi_news", "vcsum", "passage_count", "lcc")
    assert ("Who?" in first.question) == asks and "Who?" not in first.context
    assert "{" not in prompt(first)
    few_shot_or_code = name in ("trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p")
    assert first.details["chat"] != few_shot_or_code
    assert first.details.get("stop") == ("\n" if name == "samsum" else None)
    assert first.details["classes"] == (["Food", "Animal"] if name in ("trec", "lsht") else [])
    assert (first.details["id"], first.details["words"], first.details["wording"]) == ("0a", 3, "own")


def test_longbench_e_and_texts_with_braces(tmp_path):
    path = write_lines(tmp_path / "lcc_e.jsonl", longbench_record("lcc_e", context="f'{input}' {context} {0}\n"))
    (sample,) = published.read("longbench/lcc", path)
    assert sample.context.endswith("f'{input}' {context} {0}\n") and sample.question == "Next line of code:\n"


def test_longbenchs_own_prompts(tmp_path):
    path = write_lines(tmp_path / "qasper.jsonl", longbench_record("qasper"))
    prompts = tmp_path / "dataset2prompt.json"
    prompts.write_text(json.dumps({"qasper": "Their words: {context}\n\nQ: {input}\nA:"}))
    for samples in (
        published.read("longbench/qasper", path, prompts=prompts),
        published.generate("longbench/qasper", 0, 5, 1, Counter(), data=path),
    ):
        assert prompt(samples[0]) == "Their words: A long text.\n\nQ: Who?\nA:"
        assert samples[0].details["wording"] == "published"
    with pytest.raises(TaskError, match="dataset2prompt.json: expected a prompt with one {context} for 'lcc'"):
        published.read("longbench/lcc", write_lines(tmp_path / "lcc.jsonl", longbench_record("lcc")), prompts=prompts)


OPTIONS = ["parse", "read", "write", "close"]
# Records, what the question must have, the beginning of the answer and the answers.
INFINITEBENCH = {
    "passkey": ({"input": "What is the pass key?", "answer": "71432"}, "pass key?", "The pass key is", ("71432",)),
    "number_string": ({"input": "Which digits?", "answer": ["0011"]}, "Which", "The sequence of digits is", ("0011",)),
    "kv_retrieval": ({"input": '\nKey: "a"\nThe value is: ', "answer": "b"}, 'Key: "a"', "", ("b",)),
    "longbook_sum_eng": ({"input": "", "answer": ["A book."]}, "", "Summary:", ("A book.",)),
    "longbook_choice_eng": (
        {"input": "Who?", "answer": ["write"], "options": OPTIONS},
        "Question: Who?\nA. parse\nB. read\nC. write\nD. close",
        "The letter of the correct answer is",
        ("write", "C"),
    ),
    "longbook_qa_eng": ({"input": "Who?", "answer": ["Ann", "she"]}, "Question: Who?", "Answer:", ("Ann", "she")),
    "longbook_qa_chn": ({"input": "谁？", "answer": ["安"]}, "问题：谁？", "答案：", ("安",)),
    "longdialogue_qa_eng": ({"input": "", "answer": ["ANN", "ANN B"]}, "", "The name that was", ("ANN", "ANN B")),
    "math_find": (
        {"prompt": "", "input": "One number. The second largest number of the list is: ", "answer": 98},
        "The second largest number of the list is: ",
        "",
        ("98",),
    ),
    "math_calc": ({"input": "", "answer": [[3, 1, 4]]}, "", "Values:", ("3", "1", "4")),
    "code_run": ({"input": "Give the value of func_71(-3).", "answer": -17}, "func_71(-3)", "The value of func_71(-3) is", ("-17",)),
    "code_debug": ({"input": "", "answer": ["read", "B"], "options": OPTIONS}, "B. read", "The correct option is:", ("read", "B")),
}


@pytest.mark.parametrize("name", INFINITEBENCH)
def test_infinitebench(tmp_path, name):
    record, asked, prefix, answers = INFINITEBENCH[name]
    path = write_lines(tmp_path / f"{name}.jsonl", {"id": 4, "context": "Lots of text.", **record})
    (sample,) = published.read(f"infinitebench/{name}", path)
    assert asked in sample.question and sample.prefix.startswith(prefix) and bool(prefix) == bool(sample.prefix)
    assert sample.context.endswith("Lots of text.\n\n") and len(sample.context) > len("Lots of text.\n\n")
    assert sample.answers == answers and sample.task == f"infinitebench/{name}" and sample.details["id"] == 4


def test_all_of_infinitebench_is_read():
    assert {f"infinitebench/{name}" for name in INFINITEBENCH} == {n for n in published.TASKS if n.startswith("infinitebench/")}


def test_math500(tmp_path):
    record = {"problem": "1 + 1?", "solution": "2", "answer": "2", "subject": "Algebra", "level": 1, "unique_id": "test/1"}
    path = write_lines(tmp_path / "math500.jsonl", record, {"problem": "2?", "answer": "\\frac12"})
    samples = published.read("math/math500", path, repeats=2)
    assert [sample.index for sample in samples] == [0, 1, 2, 3]
    assert [sample.answers for sample in samples] == [("2",), ("2",), ("\\frac12",), ("\\frac12",)]
    assert [sample.details["repeat"] for sample in samples] == [0, 1, 0, 1]
    assert samples[0].details["problem"] == "test/1" and samples[2].details["problem"] == 1
    assert samples[0].details["subject"] == "Algebra" and "1 + 1?" in prompt(samples[0]) and "\\boxed{}" in prompt(samples[0])


@pytest.mark.parametrize(
    "record",
    [
        {"problem": "1 + 1?", "answer": "070", "id": 3},
        {"ID": 3, "Problem": "1 + 1?", "Solution": "", "Answer": 70},
        {"question": "1 + 1?", "answer": "70", "id": 3},
        {"problem_idx": 3, "problem": "1 + 1?", "answer": 70},
    ],
)
def test_aime_in_its_different_files(tmp_path, record):
    (sample,) = published.read("math/aime", write_lines(tmp_path / "aime.jsonl", record))
    assert sample.answers == ("70",) and "1 + 1?" in prompt(sample) and sample.details["problem"] == 3


def test_only_the_first_records_are_read(tmp_path):
    path = tmp_path / "math.jsonl"
    path.write_text('{"problem": "1?", "answer": "1"}\n\n{"problem": "2?", "answer": "2"}\nnot JSON\n')
    assert [sample.answers[0] for sample in published.read("math/math500", path, limit=2)] == ["1", "2"]
    assert len(published.generate("math/math500", 0, 2, 1, Counter(), data=path)) == 2
    with pytest.raises(TaskError, match="math.jsonl, line 4: not JSON"):
        published.read("math/math500", path)


def test_long_contexts_are_cut_to_the_tokens_that_were_asked_for(tmp_path):
    text = " ".join(str(i) for i in range(10000, 13000))
    path = write_lines(tmp_path / "qasper.jsonl", longbench_record("qasper", context=text), longbench_record("qasper"))
    long, short = published.generate("longbench/qasper", 2000, 5, 1, Counter(), data=path)
    assert 1960 <= size(long) <= 2000 and long.details["cut"] and "cut" not in short.details
    assert "10000 10001" in long.context and long.context.endswith("12999") and "Who?" in long.question


BAD = [
    ("longbench/qasper", "[1]", "line 2: expected an object, got list"),
    ("longbench/qasper", "{", "line 2: not JSON"),
    ("longbench/qasper", longbench_record("lcc"), "line 2: expected a record of qasper, got one of lcc"),
    ("longbench/qasper", longbench_record("qasper", answers=[]), "line 2: expected a list of texts in 'answers'"),
    ("longbench/qasper", longbench_record("qasper", context=7), "line 2: expected text in 'context', got int"),
    ("longbench/trec", longbench_record("trec", all_classes=None), "line 2: 'all_classes' is missing"),
    ("infinitebench/passkey", {"input": "?", "context": "c"}, "line 2: 'answer' is missing; there are context, input"),
    ("infinitebench/passkey", {"input": "?", "answer": "1"}, "line 2: 'context' or 'content' is missing"),
    ("infinitebench/passkey", {"input": "?", "context": "c", "answer": None}, "line 2: expected a text, a number or a list"),
    ("infinitebench/code_run", {"input": "f(x)", "context": "c", "answer": 1}, "line 2: expected a call such as func_1"),
    ("infinitebench/code_run", {"input": "func_1(2)", "context": "c", "answer": "x"}, "line 2: expected numbers in 'answer'"),
    ("infinitebench/math_find", {"input": "?", "context": "c", "answer": 1}, "line 2: expected 'The ... of' in 'input'"),
    (
        "infinitebench/code_debug",
        {"input": "", "context": "c", "answer": "open", "options": OPTIONS},
        "line 2: the answer 'open' is none of the options",
    ),
    (
        "infinitebench/longbook_choice_eng",
        {"input": "?", "context": "c", "answer": "parse", "options": OPTIONS[:3]},
        "line 2: expected 4 options, got 3",
    ),
    ("math/math500", {"problem": "?"}, "line 2: 'answer' is missing; there are problem"),
    ("math/math500", {"problem": " ", "answer": "1"}, "line 2: 'problem' is empty"),
    ("math/aime", {"problem": "?", "answer": "1000"}, "line 2: expected an integer from 0 to 999 in 'answer', got '1000'"),
    ("math/aime", {"problem": "?", "answer": "1.5"}, "line 2: expected an integer from 0 to 999"),
]


@pytest.mark.parametrize(("task", "record", "message"), BAD)
def test_a_bad_record_is_named_by_file_and_line(tmp_path, task, record, message):
    path = tmp_path / "bad.jsonl"
    path.write_text("\n" + (record if isinstance(record, str) else json.dumps(record)) + "\n")
    with pytest.raises(TaskError) as error:
        published.read(task, path)
    assert f"bad.jsonl, {message}" in str(error.value)


def test_bytes_that_are_no_text_are_named_too(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"problem": "\xff"}\n')
    with pytest.raises(TaskError, match="bad.jsonl, line 1: not UTF-8"):
        published.read("math/math500", path)


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(TaskError, match="cannot read .*nothing.jsonl: No such file"):
        published.read("math/aime", tmp_path / "nothing.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(TaskError, match="empty.jsonl has no records"):
        published.read("math/aime", empty)
    with pytest.raises(TaskError, match="no published task 'longbenc/qasper'; there are longbench/narrativeqa, "):
        published.read("longbenc/qasper", empty)
    with pytest.raises(TaskError, match="no set 'qaspe' in LongBench; there are narrativeqa, "):
        published.read("longbench/qaspe", empty)
    with pytest.raises(TaskError, match="no task 'passkeys' in InfiniteBench; there are passkey, "):
        published.read("infinitebench/passkeys", empty)
    with pytest.raises(TaskError, match="math/aime is read from its published file; give that file's path"):
        published.generate("math/aime", 0, 1, 1, Counter())
    with pytest.raises(TaskError, match="expected repeats of at least 1, got 0"):
        published.read("math/aime", empty, repeats=0)
