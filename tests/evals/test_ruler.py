"""RULER's tasks: what they hide, where, how long they are; and that seeds give them again."""

import re
from collections import Counter as Occurrences

import pytest

from task_helpers import Counter, prompt, size
from tasks import ruler, ruler_needles
from tasks.errors import TaskError

NEEDLES = [*ruler_needles.KINDS]
GENERATED = [*NEEDLES, "vt", "cwe", "fwe", "qa_1", "qa_2"]
LENGTHS = [1024, 4096, 20000]


def generate(task, tokens=2048, count=2, seed=1, **options):
    return ruler.generate(task, tokens, count, seed, Counter(), **options)


def test_there_are_thirteen():
    assert ruler.TASKS == (
        "niah_single_1",
        "niah_single_2",
        "niah_single_3",
        "niah_multikey_1",
        "niah_multikey_2",
        "niah_multikey_3",
        "niah_multivalue",
        "niah_multiquery",
        "vt",
        "cwe",
        "fwe",
        "qa_1",
        "qa_2",
    )


@pytest.mark.parametrize("task", GENERATED)
@pytest.mark.parametrize("tokens", LENGTHS)
def test_lengths_are_within_two_percent(task, tokens):
    for sample in generate(task, tokens, 3):
        assert 0.98 * tokens <= size(sample) <= tokens
        assert sample.details["length"] == tokens
        assert sample.details["prompt_tokens"] == size(sample) - sample.new_tokens


@pytest.mark.parametrize("task", GENERATED)
def test_seeds_reproduce(task):
    assert generate(task, seed=1) == generate(task, seed=1)
    first, second = generate(task, seed=1)
    assert first.context != second.context and first.answers != second.answers
    assert generate(task, seed=2)[0].answers != first.answers
    assert generate(task, count=1, seed=1) == [first]
    assert [sample.index for sample in (first, second)] == [0, 1]


@pytest.mark.parametrize("task", GENERATED)
def test_token_counts_are_few(task):
    count = Counter()
    ruler.generate(task, 65536, 4, 1, count)
    assert count.calls <= 20


@pytest.mark.parametrize("task", NEEDLES)
def test_each_answer_is_in_the_context_once(task):
    for sample in generate(task, count=5):
        for answer in sample.answers:
            assert prompt(sample).count(answer) == 1 and answer in sample.context


@pytest.mark.parametrize(
    ("task", "answers", "needles", "value"),
    [
        ("niah_single_1", 1, 1, r"\d{7}"),
        ("niah_single_2", 1, 1, r"\d{7}"),
        ("niah_single_3", 1, 1, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        ("niah_multikey_1", 1, 4, r"\d{7}"),
        ("niah_multikey_2", 1, None, r"\d{7}"),
        ("niah_multikey_3", 1, None, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        ("niah_multivalue", 4, 4, r"\d{7}"),
        ("niah_multiquery", 4, 4, r"\d{7}"),
    ],
)
def test_numbers_of_needles(task, answers, needles, value):
    for sample in generate(task):
        assert len({*sample.answers}) == answers
        assert all(re.fullmatch(value, answer) for answer in sample.answers)
        sentences = re.findall(r"One of the registered \w+ for (\S+) is: (\S+)\.", sample.context)
        keys = [key for key, answer in sentences if answer in sample.answers]
        assert len(sentences) == needles or (needles is None and len(sentences) > 10)
        assert len({*keys}) == (4 if task == "niah_multiquery" else 1)
        assert all(key in sample.question for key in keys)
        # No other key is named, and no other needle has one of these keys.
        assert sum(key in sample.question for key in {key for key, _ in sentences}) == len({*keys})
        assert sum(key in keys for key, _ in sentences) == answers
        assert sample.details["needles"] == (needles or 1)


def test_no_other_needle_has_the_key_that_is_asked_for(monkeypatch):
    few_keys = ruler_needles.Kind("needles", key=lambda rng: rng.choice(["calm-oak", "cold-fox", "wide-sea"]), fillers=4)
    monkeypatch.setitem(ruler_needles.KINDS, "niah_multikey_2", few_keys)
    for sample in generate("niah_multikey_2"):
        keys = re.findall(r"for (\S+) is:", sample.context)
        (asked,) = (key for key in {*keys} if key in sample.question)
        assert keys.count(asked) == 1 and len({*keys}) == 3


@pytest.mark.parametrize("task", ["niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2"])
def test_depths_are_where_the_needles_are(task):
    depths = set()
    for sample in generate(task, 8192, 6):
        text = sample.context.split("\n", 1)[1]
        needle = text.index("One of the registered") if task.startswith("niah_single") else text.index(sample.answers[0])
        assert needle / len(text) == pytest.approx(sample.details["depth"], abs=0.02)
        depths.add(sample.details["depth"])
    assert len(depths) > 3


def test_needles_lie_in_the_users_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Only this sentence is here. " * 3)
    (sample,) = generate("niah_single_2", count=1, haystack=path)
    assert sample.context.count("Only this sentence is here.") > 100
    assert 0.98 * 2048 <= size(sample) <= 2048


def test_a_chain_has_five_variables_in_order():
    for sample in generate("vt", 4096):
        text = sample.context.split("Keep track of")[2]
        statements = re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", text)
        assert tuple(name for name, _ in statements) == sample.answers and len({*sample.answers}) == 5
        value = statements[0][1]
        assert re.fullmatch(r"\d{5}", value) and value in sample.question and value in sample.prefix
        assert [source for _, source in statements[1:]] == list(sample.answers[:4])


def test_chains_are_spread_over_the_text():
    places = []
    for sample in generate("vt", 4096, 30):
        text = sample.context.split("Keep track of")[2]
        places.append([match.start() / len(text) for match in re.finditer("VAR .+ =", text)])
    # The expected places of five random ones in order are 1/6 to 5/6.
    for i in range(5):
        assert sum(place[i] for place in places) / len(places) == pytest.approx((i + 1) / 6, abs=0.1)


def test_the_example_of_a_chain_is_solved():
    (sample,) = generate("vt", count=1)
    example = sample.context.split("Keep track of")[1]
    names = re.findall(r"VAR (\w+) =", example)
    assert example.strip().endswith(": " + " ".join(names)) and len(names) == 5


@pytest.mark.parametrize(("tokens", "often", "seldom"), [(2048, 6, 1), (8192, 30, 3), (300000, 30, 3)])
def test_common_words_are_more_frequent(tokens, often, seldom):
    (sample,) = generate("cwe", tokens, 1)
    words = re.findall(r"\d+\. (\w+)", sample.context.split("In the numbered list")[2])
    occurrences = Occurrences(words)
    assert len(sample.answers) == 10
    assert {occurrences[answer] for answer in sample.answers} == {often}
    assert {times for word, times in occurrences.items() if word not in sample.answers} == {seldom}
    assert not any(answer in word for word in occurrences for answer in sample.answers if word != answer)
    # The example gives none of them away.
    assert not any(answer in sample.context.split("In the numbered list")[1] for answer in sample.answers)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_frequent_words_follow_the_distribution(tokens):
    (sample,) = generate("fwe", tokens, 1)
    occurrences = Occurrences(re.findall(r"\b[a-z]{6}\b|\.\.\.", sample.context.split(". ", 1)[1]))
    ranked = [word for word, _ in occurrences.most_common(4)]
    assert ranked == ["...", *sample.answers]
    counts = [occurrences[word] for word in ranked]
    assert counts[0] / counts[1] == pytest.approx(4, rel=0.05)
    assert counts[1] / counts[3] == pytest.approx(4, rel=0.2)
    # The third answer is told from the word that follows.
    assert occurrences[sample.answers[2]] > occurrences.most_common(5)[4][1]


def test_what_cannot_be_made_is_refused(tmp_path):
    with pytest.raises(TaskError, match="no task 'niah' in RULER; there are niah_single_1, "):
        generate("niah")
    with pytest.raises(TaskError, match="ruler/cwe needs at least .* tokens, new ones included, but 200 were asked for"):
        generate("cwe", 200)
    with pytest.raises(TaskError, match="vt hides nothing in prose"):
        generate("vt", haystack=tmp_path / "text.txt")
    with pytest.raises(TaskError, match="vt takes no data file"):
        generate("vt", data=tmp_path / "data.json")
    for task in ("qa_1", "qa_2"):
        with pytest.raises(TaskError, match=f"ruler/{task} needs at least .* but 100 were asked for"):
            generate(task, 100)
