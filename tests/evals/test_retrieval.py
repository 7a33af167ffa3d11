"""InfiniteBench's synthetic tasks at any length, and the grid of needles."""

import json
import re
import statistics

import pytest

from task_helpers import Counter, prompt, size
from tasks import retrieval
from tasks.errors import TaskError

TASKS = [*retrieval.TASKS]


def generate(task, tokens=2048, count=2, seed=1, **options):
    return retrieval.generate(task, tokens, count, seed, Counter(), **options)


def test_the_tasks_are_there():
    assert TASKS == ["passkey", "number_string", "kv_retrieval", "math_find", "code_run", "needle"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("tokens", [1024, 4096, 20000])
def test_lengths_are_within_two_percent(task, tokens):
    for sample in generate(task, tokens, 7):
        assert 0.98 * tokens <= size(sample) <= tokens
        assert sample.details["length"] == tokens and sample.task == f"retrieval/{task}"


@pytest.mark.parametrize("task", TASKS)
def test_seeds_reproduce(task):
    assert generate(task) == generate(task)
    first, second = generate(task)
    assert first.context != second.context and [first.index, second.index] == [0, 1]
    assert generate(task, seed=2)[0].context != first.context


@pytest.mark.parametrize(("task", "value", "what"), [("passkey", r"\d{5}", "pass key"), ("number_string", r"\d{10}", "sequence")])
def test_a_secret_is_said_twice_in_one_line(task, value, what):
    for sample in generate(task, 8192, 5):
        (secret,) = sample.answers
        assert re.fullmatch(value, secret) and what in sample.question
        lines = [line for line in sample.context.split("\n") if secret in line]
        assert len(lines) == 1 and lines[0].count(secret) == 2 and secret not in sample.question + sample.prefix
        assert sample.context.index(lines[0]) / len(sample.context) == pytest.approx(sample.details["depth"], abs=0.03)


def test_number_strings_have_doubled_digits():
    for sample in generate("number_string", count=10):
        runs = re.findall(r"(\d)\1*", sample.answers[0])
        assert len(runs) <= 5


def test_the_value_of_the_key_is_in_the_object_once():
    for sample in generate("kv_retrieval", 4096, 5):
        pairs = json.loads(sample.context[sample.context.index("{") :])
        key = re.search('"(.+)"', sample.question)[1]
        assert pairs[key] == sample.answers[0]
        assert prompt(sample).count(sample.answers[0]) == 1 and prompt(sample).count(key) == 2
        place = list(pairs).index(key)
        assert place / (len(pairs) - 1) == pytest.approx(sample.details["depth"])
        assert sample.details["pairs"] == len(pairs) > 20


def test_numbers_by_rank():
    samples = generate("math_find", 1024, 14)
    assert len({sample.details["rank"] for sample in samples}) == 7
    for sample in samples:
        numbers = json.loads(re.search(r"\[.*\]", sample.context)[0])
        different = sorted({*numbers})
        expected = {
            "largest": different[-1],
            "second largest": different[-2],
            "third largest": different[-3],
            "smallest": different[0],
            "second smallest": different[1],
            "third smallest": different[2],
            "median": statistics.median(numbers),
        }[sample.details["rank"]]
        assert sample.answers == (str(expected),)
        assert 0 <= different[0] and different[-1] <= 99 and len(numbers) == sample.details["numbers"]
        assert f"The {sample.details['rank']} number" in sample.question


def test_what_a_function_returns():
    samples = generate("code_run", 4096, 10)
    assert [sample.details["calls"] for sample in samples] == [2, 4, 6, 8, 10] * 2
    for sample in samples:
        module = {}
        code = sample.context.split("\n\n", 1)[1]
        exec(code, module)
        call = re.search(r"func_\d+\(-?\d+\)", sample.question)[0]
        assert str(eval(call, module)) == sample.answers[0]
        name, depth = call.split("(")[0], 0
        while name:
            callee = re.search(rf"def {name}\(x\):\n    return (?:(func_\d+)\(x\)|x)", code)[1]
            name, depth = callee, depth + 1
        assert depth == sample.details["calls"]
        assert code.count("def ") == sample.details["functions"]


def test_a_grid_has_every_length_and_depth():
    lengths, depths = [1024, 3000], [0, 0.25, 0.5, 1]
    samples = retrieval.grid(lengths, depths, 2, 1, Counter())
    assert [sample.index for sample in samples] == list(range(16))
    places = [(sample.details["length"], sample.details["depth"]) for sample in samples]
    assert sorted(places) == sorted((length, depth) for length in lengths for depth in depths for _ in range(2))
    for sample in samples:
        (answer,) = sample.answers
        assert prompt(sample).count(answer) == 1
        place = sample.context.index("The number that was agreed on")
        end = len(sample.context) - len(re.search(r"The number that was agreed on[^.]*\.", sample.context)[0])
        assert place / end == pytest.approx(sample.details["depth"], abs=0.03)
        assert 0.98 * sample.details["length"] <= size(sample) <= sample.details["length"]


def test_a_grid_in_the_users_text(tmp_path):
    path = tmp_path / "novel.txt"
    path.write_text("".join(f"Sentence {i} of a novel goes on for a while. " for i in range(2000)))
    samples = retrieval.grid([4096], [0.2, 0.8], 1, 1, Counter(), haystack=path)
    for sample in samples:
        place = sample.context.index("The number that was agreed on")
        assert place / len(sample.context) == pytest.approx(sample.details["depth"], abs=0.02)
        assert sample.context.startswith("Sentence 0 of a novel") and "Sentence 100 of" in sample.context


def test_few_needles_are_spread_over_the_depths():
    assert [sample.details["depth"] for sample in generate("needle", 1024, 2)] == [0.25, 0.75]
    depths = [sample.details["depth"] for sample in generate("needle", 1024, 25)]
    assert depths[:12] == [*(i / 10 for i in range(11)), 0.0] and len(depths) == 25


def test_what_cannot_be_made_is_refused():
    with pytest.raises(TaskError, match="no task 'pass_key' among those of retrieval; there are passkey, "):
        generate("pass_key")
    with pytest.raises(TaskError, match="expected depths from 0 to 1, got 50"):
        retrieval.grid([1024], [50], 1, 1, Counter())
    with pytest.raises(TaskError, match="retrieval/passkey needs at least .* tokens"):
        generate("passkey", 40)
    with pytest.raises(TaskError, match="passkey has noise of its own"):
        generate("passkey", haystack="text.txt")
