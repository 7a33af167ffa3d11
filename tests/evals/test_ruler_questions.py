"""RULER's questions about published documents, on small files of the published formats."""

import json

import pytest

from task_helpers import Counter, size
from tasks import ruler
from tasks.errors import TaskError


def words(name, count):
    return " ".join(f"{name}{i}" for i in range(count))


def answers(*texts):
    return [{"text": text, "answer_start": 0} for text in texts]


def squad():
    articles = []
    for a in range(4):
        paragraphs = [
            {
                "context": f"Paragraph {a} {p} says blue{a}{p}. {words(f'w{a}{p}x', 30)}",
                "qas": [
                    {"question": f"What of {a} {p}?", "id": "1", "answers": answers(f"blue{a}{p}", f"blue{a}{p}", "says")},
                    {"question": "Nothing?", "id": "2", "answers": [], "is_impossible": True},
                ],
            }
            for p in range(3)
        ]
        articles.append({"title": f"Article {a}", "paragraphs": paragraphs})
    return {"version": "v2.0", "data": articles}


def hotpotqa():
    return [
        {
            "_id": str(e),
            "question": f"Who is {e}?",
            "answer": f"person{e}",
            "context": [[f"Title {e} {d}", [f"It is person{e}.", f" {words(f'h{e}{d}x', 25)}"]] for d in range(2)],
        }
        for e in range(5)
    ]


def generate(task, tmp_path, data, tokens=1024, count=3, seed=1):
    path = tmp_path / "published.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return ruler.generate(task, tokens, count, seed, Counter(), data=path)


@pytest.mark.parametrize("tokens", [1024, 2048, 20000])
def test_squad(tmp_path, tokens):
    samples = generate("qa_1", tmp_path, squad(), tokens)
    assert samples[0].question.endswith("Question: What of 0 0?")
    assert samples[1].answers == ("blue01", "says")
    for sample in samples:
        assert 0.98 * tokens <= size(sample) <= tokens
        assert sample.context.count(sample.answers[0] + ".") == 1
        assert sample.context.startswith(sample.question.split("\n")[0])
        assert f"Document {sample.details['documents']}:" in sample.context
    assert samples == generate("qa_1", tmp_path, squad(), tokens)


def test_paragraphs_of_the_same_article_come_first(tmp_path):
    # Room for three paragraphs, and an article has three.
    (sample,) = generate("qa_1", tmp_path, squad(), 520, 1)
    assert sample.details["documents"] == 3
    assert all(f"Paragraph 0 {p}" in sample.context for p in range(3))


def test_the_answers_place_depends_on_the_seed(tmp_path):
    places = {generate("qa_1", tmp_path, squad(), 2048, 1, seed)[0].context.index("Paragraph 0 0 ") for seed in range(6)}
    assert len(places) > 2


def test_hotpotqa(tmp_path):
    samples = generate("qa_2", tmp_path, hotpotqa(), 1024, 7)
    for sample in samples:
        assert 0.98 * 1024 <= size(sample) <= 1024
        entry = sample.index % 5
        assert sample.answers == (f"person{entry}",)
        assert f"Title {entry} 0\nIt is person{entry}. h{entry}0x0" in sample.context
        assert f"Title {entry} 1\n" in sample.context


def without(data, *path):
    """The data less one member."""
    inside = data
    for step in path[:-1]:
        inside = inside[step]
    del inside[path[-1]]
    return data


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        ("qa_1", '{"data": [\n\n}', "published.json, line 3: not JSON"),
        ("qa_1", {}, "published.json: 'data' is missing"),
        ("qa_1", [], "published.json: expected dict, got list"),
        ("qa_1", {"data": []}, "published.json has no question with an answer"),
        (
            "qa_1",
            without(squad(), "data", 2, "paragraphs", 1, "qas", 0, "question"),
            r"published.json: data\[2\].paragraphs\[1\].qas\[0\]: 'question' is missing",
        ),
        ("qa_1", without(squad(), "data", 1, "paragraphs", 0, "context"), r"data\[1\].paragraphs\[0\]: 'context' is missing"),
        ("qa_1", without(squad(), "data", 0, "paragraphs", 0, "qas", 1, "is_impossible"), "at least one of 'answers'"),
        ("qa_2", squad(), "published.json: expected list, got dict"),
        ("qa_2", without(hotpotqa(), 3, "answer"), r"published.json: \[3\]: 'answer' is missing"),
        ("qa_2", without(hotpotqa(), 1, "context", 0, 1), r"\[1\].context\[0\]: expected \[title, \[sentence, ...\]\]"),
        ("qa_2", hotpotqa()[:1], "no document beside those of the question 'Who is 0[?]'"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, task, data, message):
    with pytest.raises(TaskError, match=message):
        generate(task, tmp_path, data)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TaskError, match="cannot read .*nothing.json: No such file"):
        ruler.generate("qa_1", 1024, 1, 1, Counter(), data=tmp_path / "nothing.json")
