"""How tokens are drawn, where answers end, and what several answers to a problem come to."""

import numpy as np
import pytest

import fake_engine  # noqa: F401 - finds evals
from task_helpers import write_lines

import config  # noqa: E402
import report  # noqa: E402
import worker  # noqa: E402
import sampling  # noqa: E402
import summary  # noqa: E402
import task_list  # noqa: E402
from config import ConfigError, Task  # noqa: E402
from sample import Sample  # noqa: E402
from sampling import Sampling  # noqa: E402

LOGITS = np.log(np.array([0.1, 0.5, 0.1, 0.3], np.float32)) - 7
METHODS = {"dense": {"selector": "dense"}}


def shares(chosen, draws=4000):
    random = np.random.default_rng(1).random
    tokens = [sampling.choose(LOGITS, chosen, random) for _ in range(draws)]
    return np.bincount(tokens, minlength=len(LOGITS)) / draws


def test_without_a_temperature_the_likeliest_token_is_taken():
    assert sampling.choose(LOGITS, Sampling(), None) == 1


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (Sampling(1.0), [0.1, 0.5, 0.1, 0.3]),
        (Sampling(0.5), np.square([0.1, 0.5, 0.1, 0.3]) / 0.36),
        (Sampling(1.0, top_p=0.8), [0, 0.625, 0, 0.375]),
        (Sampling(1.0, top_p=0.81), [1 / 9, 5 / 9, 0, 3 / 9]),  # of two that are as likely, the first
        (Sampling(1.0, top_p=1e-6), [0, 1, 0, 0]),
    ],
)
def test_tokens_come_as_often_as_they_are_likely(chosen, expected):
    # Five standard deviations of a share of 4,000 draws are at most 0.04.
    assert np.abs(shares(chosen) - expected).max() < 0.04
    assert (shares(chosen)[np.array(expected) == 0] == 0).all()


@pytest.mark.parametrize("number", [0.0, np.nextafter(1, 0)])
def test_the_ends_of_the_numbers_are_tokens(number):
    logits = np.random.default_rng(2).normal(0, 9, 50000).astype(np.float32)
    assert logits[sampling.choose(logits, Sampling(1.0, 0.9), lambda: number)] > np.median(logits)


def test_every_sample_has_a_seed_and_methods_share_it():
    task = Task("math/aime", 0, 1, temperature=0.6, top_p=0.95)

    def of(index, seed=1):
        return sampling.of(task, Sample("math/aime", index, "", "", (), 1), seed)

    assert (of(3).temperature, of(3).top_p) == (0.6, 0.95) and of(3) == of(3)
    assert len({of(index, seed).seed for index in range(50) for seed in range(20)}) == 1000
    assert all(0 <= of(index).seed < 2**31 for index in range(100))


class Letters:
    """A model whose tokens are letters, and a context that says a text."""

    def __init__(self, text):
        self.text, self.steps = text, 0

    def is_end(self, token):
        return token == 0

    def detokenize(self, tokens):
        return "".join(map(chr, tokens))

    def logits(self, i):
        return np.eye(256, dtype=np.float32)[ord(self.text[i])]

    def step(self, token, position):
        assert token == ord(self.text[position - 100])
        self.steps += 1
        return self.logits(position - 99)


@pytest.mark.parametrize(
    ("text", "stop", "said", "steps"),
    [
        ("one\ntwo\0", "", "one\ntwo\0", 7),
        ("one\ntwo\0", "\n", "one\n", 3),
        ("\n\none\ntwo\0", "\n", "\n\none\n", 5),
        ("a long answer", "", "a long ans", 9),
    ],
)
def test_an_answer_ends_with_the_model_the_room_or_a_stop(text, stop, said, steps):
    letters = Letters(text)
    tokens, _ = sampling.generate(letters, letters, letters.logits(0), 100, 10, Sampling(stop=stop))
    assert letters.detokenize(tokens) == said and letters.steps == steps


class Brief:
    """A model that would end at once, and then says 1 rather than 2."""

    def is_end(self, token):
        return token == 0

    def step(self, token, position):
        return np.array([3.0, 2.0, 1.0], np.float32)


@pytest.mark.parametrize(("least", "said"), [(0, [0]), (1, [1, 0]), (3, [1, 1, 1, 0]), (9, [1] * 5)])
def test_no_end_is_drawn_before_the_least_length(least, said):
    first = Brief().step(0, 0)
    tokens, _ = sampling.generate(Brief(), Brief(), first, 0, 5, Sampling(least=least))
    assert tokens == said and first[0] == 3
    drawn, _ = sampling.generate(Brief(), Brief(), first, 0, 5, Sampling(1.0, least=least, seed=1))
    assert 0 not in drawn[:least] and len(drawn) >= min(least, 5)


def test_an_answer_is_cut_at_a_stop_but_not_at_its_beginning():
    assert sampling.cut("\none\ntwo", "\n") == "\none" and sampling.cut("one", "\n") == "one"
    assert sampling.cut("\n\n", "\n") == "\n\n" and sampling.cut("one\ntwo", "") == "one\ntwo"


def aime(folder, problems=2):
    records = [{"problem": f"What is {number}?", "answer": str(number)} for number in range(problems)]
    return str(write_lines(folder / "aime.jsonl", *records))


def parsed(task, **changes):
    return config.parse({"task": [task], "method": METHODS, "progress": False, **changes})


def test_a_configuration_asks_for_several_answers(tmp_path):
    task = {"name": "math/aime", "data": aime(tmp_path), "count": 9, "repeats": 3, "new_tokens": 50, "temperature": 0.6}
    work = task_list.make_work(parsed(task), fake_engine.FakeEngine("", "", {}, 1))
    assert [(item.index, item.sample.answers) for item in work] == [(i, (str(i // 3),)) for i in range(6)]
    assert {item.sample.new_tokens for item in work} == {50}
    drawn = [worker.make_job(parsed(task), item, tmp_path, 0).sampling for item in work]
    assert len({sampling.seed for sampling in drawn}) == 6 and drawn[0].temperature == 0.6


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"name": "math/aime", "repeats": 2}, "repeats is 2, and without a temperature all answers would be the same"),
        ({"name": "math/aime", "repeats": 0}, "repeats is 0; it may be 1 to"),
        ({"name": "math/aime", "temperature": -1}, "temperature is -1; it may be 0 to"),
        ({"name": "math/aime", "temperature": "hot"}, "temperature is 'hot'; expected a number"),
        ({"name": "math/aime", "top_p": 0}, "top_p is 0; it may be"),
        ({"name": "math/aime", "new_tokens": 0}, "new_tokens is 0; it may be 1 to"),
        ({"name": "kl", "temperature": 0.5}, "task 'kl' has no temperature"),
        ({"name": "retrieval/passkey", "repeats": 2, "temperature": 1}, "task 'retrieval/passkey 4,096' takes no repeats"),
        (
            {"name": "infinitebench/passkey", "repeats": 2, "temperature": 1, "data": "none.jsonl"},
            "has one answer to each question; repeats is for math/math500, math/aime",
        ),
    ],
)
def test_what_cannot_be_sampled_is_named(task, message):
    with pytest.raises(ConfigError, match=message):
        made = parsed(task)
        task_list.check(made.tasks)
        task_list.make_work(made, fake_engine.FakeEngine("", "", {}, 1))


def longbench(folder, name):
    record = {"input": "Dialogue:", "context": "text", "answers": ["a"], "dataset": name, "all_classes": None, "length": 1}
    return {"name": f"longbench/{name}", "data": str(write_lines(folder / f"{name}.jsonl", record))}


def test_sets_without_a_chat_template_have_none_in_llamacpp(tmp_path):
    engine = fake_engine.FakeEngine("", "", {}, 1)
    begin, user, model = engine.tokenize("<begin> <user> <model>")
    around = {"before": "<user>", "after": "<model>"}
    (qasper,) = task_list.make_work(parsed(longbench(tmp_path, "qasper"), **around), engine, [begin])
    (samsum,) = task_list.make_work(parsed(longbench(tmp_path, "samsum"), **around), engine, [begin])
    assert list(qasper.context[:2]) == [begin, user] and qasper.question[-1] == model
    assert samsum.context[0] == begin and user not in samsum.context and model not in samsum.question
    assert worker.make_job(parsed(longbench(tmp_path, "samsum")), samsum, tmp_path, 0).sampling.stop == "\n"


def rows_of(scores, **more):
    """Results of 3 answers to each problem."""
    rows = []
    for index, score in enumerate(scores):
        row = {"task": "math/aime", "name": "math/aime", "index": index, "method": "m", "details": {"repeat": index % 3}}
        result = {"score": score, "seconds": 1.0, "new_tokens": 10 * index, "cut_off": score == 0, **more}
        rows.append({**row, **({"failed": "X"} if score is None else result)})
    return rows


def test_problems_weigh_the_same_whatever_failed():
    (task,) = summary.summarize(rows_of([1, 1, 1, 0, None, None]), ["m"])
    assert task.score_title == "avg@3" and task.cells[0].score.mean == 0.5 and task.cells[0].failed == 2
    assert task.cells[0].cut_off == 0.25 and task.cells[0].new_tokens == pytest.approx((0 + 10 + 20 + 30) / 4)


def test_intervals_are_over_problems():
    (same,) = summary.summarize(rows_of([1, 1, 1, 0, 0, 0] * 5), ["m"])
    (mixed,) = summary.summarize(rows_of([1, 0, 1, 0, 1, 0] * 5), ["m"])
    widths = [task.cells[0].score.high - task.cells[0].score.low for task in (same, mixed)]
    assert same.cells[0].score.mean == mixed.cells[0].score.mean == 0.5
    assert widths[0] > 2 * widths[1]  # standard deviations of a problem's mean: 1/2 and 1/6


def test_the_report_shows_lengths_and_what_was_cut_off(tmp_path):
    task = {"name": "math/aime", "data": aime(tmp_path), "count": 2, "repeats": 3, "new_tokens": 4, "temperature": 0.6}
    fake_engine.make_run(tmp_path, {"task": [task], "method": METHODS, "progress": False}).go()
    text = report.write(tmp_path / "out")
    assert "| method | avg@3 |" in text and "| new tokens | cut off, % |" in text
    row = next(line for line in text.splitlines() if line.startswith("| dense | 0.000 |"))
    assert "| 4 | 100.0 |" in row
    assert "greedy; math/aime: temperature 0.6, top_p 1, 3 answers to each problem" in text
