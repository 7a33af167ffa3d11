"""The search for the amount of noise, and cutting what is too long."""

import random

import pytest

from task_helpers import Counter, prompt, size
from sample import Sample
from tasks import prose
from tasks.errors import TaskError
from tasks.sizing import Sizing, cut_middle, spread


def words(n):
    return Sample("task", 0, "w " * n, "q ", ("a",), 10)


@pytest.mark.parametrize("tokens", [20, 100, 1000, 100000])
def test_the_size_is_close_and_never_above(tokens):
    count = Counter()
    sample = Sizing(tokens, count).fit(words)
    assert tokens * 0.99 - 1 <= size(sample) <= tokens
    assert count.calls <= 8
    assert sample.details == {"length": tokens, "prompt_tokens": size(sample) - 10}


def test_later_fits_need_few_counts():
    count = Counter()
    sizing = Sizing(50000, count)
    sizing.fit(words)
    before = count.calls
    sizing.fit(words)
    assert count.calls == before + 1


def test_units_of_any_size_are_searched():
    sizing = Sizing(1000, Counter())
    for unit in (1, 3, 40, 199, 700):
        sample = sizing.fit(lambda n: words(n * unit))
        assert 1000 - unit < size(sample) <= 1000 or size(sample) >= 995


def test_uneven_growth_ends_too():
    sizes = [0, *(sorted(random.Random(3).sample(range(10**6), 20000)))]
    sample = Sizing(300000, lambda text: len(text) // 2).fit(lambda n: words(sizes[min(n, len(sizes) - 1)]))
    assert 0.98 * 300000 <= len(prompt(sample)) // 2 + 10 <= 300000


def test_too_few_tokens_are_refused():
    with pytest.raises(TaskError, match="task needs at least 11 tokens, new ones included, but 10 were asked for"):
        Sizing(10, Counter()).fit(words)


def test_the_middle_is_cut():
    text = " ".join(str(i) for i in range(1000, 3000))
    long = Sample("task", 0, text, " question", ("a",), 10, details={"id": 7})
    short = cut_middle(long, 1000, Counter())
    assert 980 <= size(short) <= 1000
    half = len(short.context) // 2
    assert text.startswith(short.context[:half]) and text.endswith(short.context[-half:])
    assert short.details["cut"] and short.details["id"] == 7 and short.question == " question"


def test_what_fits_is_not_cut():
    sample = words(100)
    assert cut_middle(sample, size(sample), Counter()) is sample


def test_depths_are_spread():
    depths = sorted(spread(index) for index in range(50))
    gaps = [later - earlier for earlier, later in zip([0, *depths], [*depths, 1])]
    assert max(gaps) < 0.05


def test_needles_go_to_the_nearest_boundary():
    sentences = ["aaaa.", "bbbb.", "cccc.", "dddd."]
    assert prose.insert(sentences, ["N"], [0]) == ["N", *sentences]
    assert prose.insert(sentences, ["N"], [1]) == [*sentences, "N"]
    assert prose.insert(sentences, ["N", "M"], [0.3, 0.7]) == ["aaaa.", "N", "bbbb.", "cccc.", "M", "dddd."]
    assert prose.insert(sentences, ["N", "M"], [0.5, 0.5]) == ["aaaa.", "bbbb.", "N", "M", "cccc.", "dddd."]
    assert prose.insert([], ["N", "M"], [0.2, 0.5]) == ["N", "M"]


def test_a_text_gives_any_number_of_words(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One two three.\nFour five! Six?\n")
    text = prose.from_file(path)
    assert text(0) == []
    assert text(4) == ["One two three.", "Four"]
    assert text(8) == ["One two three.", "Four five!", "Six?", "One two"]


def test_made_up_prose_goes_on():
    text = prose.made_up(random.Random(1))
    assert " ".join(text(500)).startswith(" ".join(text(100)))
    assert len(" ".join(text(500)).split()) == 500
    assert len({*text(5000)}) > 0.99 * len(text(5000))


@pytest.mark.parametrize(("data", "message"), [(b"\xff\xfe", "not a UTF-8 text file"), (b" \n", "no text"), (None, "No such file")])
def test_a_haystack_that_cannot_be_used_is_refused(tmp_path, data, message):
    path = tmp_path / "haystack.txt"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(TaskError, match=message) as error:
        prose.from_file(path)
    assert "haystack.txt" in str(error.value)
