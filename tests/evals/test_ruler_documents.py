"""RULER's questions about invented documents: who can answer them, from what, and what the documents are like."""

import itertools
import random
import re

import pytest

from task_helpers import Counter, size
from tasks import ruler, ruler_documents
from tasks.encyclopaedia import names, slots
from tasks.encyclopaedia.articles import KINDS, all_facts, article, subject
import scoring

TASKS = ["qa_1", "qa_2"]
SEEDS = range(300)


def generate(task, tokens=2048, count=2, seed=1):
    return ruler.generate(task, tokens, count, seed, Counter())


def documents(sample):
    listed = sample.context.partition("The documents:\n\n")[2].rstrip("\n")
    return re.split(r"(?:^|\n\n)Document \d+:\n", listed)[1:]


def asked(task, seed):
    question, others = ruler_documents.MADE_UP[task](random.Random(seed))
    return question, [*itertools.islice(others, 40)]


@pytest.mark.parametrize("task", TASKS)
def test_only_the_questions_documents_have_the_answer(task):
    for seed in SEEDS:
        question, others = asked(task, seed)
        texts = [question.question, *question.documents, *others]
        assert sum(text.lower().count(question.answer.lower()) for text in texts) == 1
        assert question.answer in question.documents[-1]


@pytest.mark.parametrize("task", TASKS)
def test_no_other_document_scores(task):
    for sample in generate(task, 6000, 12):
        scores = [scoring.score(sample, document) for document in documents(sample)]
        assert sorted(scores)[-2:] == [0, 1]
        assert len(scores) == sample.details["documents"] > 20


@pytest.mark.parametrize("task", TASKS)
def test_nothing_else_is_about_what_is_asked(task, monkeypatch):
    for words in ("BEGINNINGS", "MIDDLES", "ADJECTIVES", "NOUNS"):  # so few that names come again soon
        monkeypatch.setattr(names, words, getattr(names, words)[:6])
    for seed in SEEDS:
        question, others = asked(task, seed)
        unrelated = others[len(question.same_article) :]
        assert not any(name.lower() in text.lower() for name in question.names for text in unrelated)
        assert question.names[0] in question.question


def test_other_paragraphs_of_the_article_come_first():
    for seed in SEEDS:
        question, others = asked("qa_1", seed)
        (name,) = question.names
        assert [name in text for text in others].index(False) == len(question.same_article) >= 2
        assert name in question.documents[0]


def test_both_documents_are_needed():
    for seed in SEEDS:
        question, _ = asked("qa_2", seed)
        (first, second), (first_name, second_name) = question.documents, question.names
        assert first_name in first.split("\n")[0] and second_name in second.split("\n")[0]
        # The question does not name the second document, and nothing but the first says which one it is.
        assert second_name not in question.question and second_name in first and first_name not in second


def tells(fact, text):
    """Whether one of the fact's sentences is in the text, whatever is in the slots."""
    patterns = (re.sub(r"\\{\w+\\}", ".+", re.escape(sentence)) for sentence in fact.sentences)
    return any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def test_other_documents_come_in_pairs_and_the_first_tell_the_same():
    for seed in range(100):
        chain = ruler_documents.draw_chain(random.Random(seed))
        question, others = asked("qa_2", seed)
        titles = [text.split("\n")[0].removeprefix("The River ") for text in others]
        assert all(second in first for first, second in zip(others[::2], titles[1::2]))
        for first, second in (question.documents, others[0:2], others[2:4], others[4:6], others[6:8]):
            assert tells(chain.fact, first) and tells(chain.asked, second)


@pytest.mark.parametrize("task", TASKS)
def test_questions_are_of_many_kinds(task):
    without_names = {re.sub(r"[A-Z]\w+", "", asked(task, seed)[0].question[1:]) for seed in SEEDS}
    assert len(without_names) >= 60


@pytest.mark.parametrize("task", TASKS)
def test_a_million_tokens_do_not_repeat(task):
    (sample,) = generate(task, 1_000_000, 1)
    assert 0.98 * 1_000_000 <= size(sample) <= 1_000_000
    found = documents(sample)
    assert len({*found}) == len(found) > 5000
    sentences = [sentence for text in found for sentence in re.split(r"(?<=\.) ", text)]
    assert len({*sentences}) > 0.97 * len(sentences)


@pytest.mark.parametrize("task", TASKS)
def test_short_contexts_are_possible(task):
    for sample in generate(task, 512, 20):
        assert 0.98 * 512 <= size(sample) <= 512
        assert sum(sample.answers[0] in document for document in documents(sample)) == 1


@pytest.mark.parametrize("task", TASKS)
def test_the_documents_places_depend_on_the_seed(task):
    def place(seed):
        (sample,) = generate(task, 4096, 1, seed)
        return sample.context.index(sample.answers[0]) // 2000

    assert len({place(seed) for seed in range(12)}) > 4


@pytest.mark.parametrize("kind", KINDS)
def test_facts_are_complete(kind):
    facts = all_facts(kind)
    questions = [question for fact in facts for question in fact.questions.values()]
    assert len({*questions}) == len(questions) >= 12
    for fact in facts:
        assert all("{s}" in text for text in (*fact.sentences, *fact.questions.values()))
        asked_or_linked = {*fact.questions, *slots.LINKS} & {*fact.slots}
        assert all(f"{{{slot}}}" in sentence for slot in asked_or_linked for sentence in fact.sentences)
        assert {*fact.questions} <= {*fact.slots}


def test_links_lead_somewhere():
    linked = [slot for _, _, slot in ruler_documents.LINKED_FACTS]
    assert {*linked} == {*slots.LINKS}
    for slot, link in slots.LINKS.items():
        assert link.kind in KINDS and "{s}" in link.phrase, slot


@pytest.mark.parametrize(("kind", "another"), [("town", "old road"), ("river", "tributary"), ("company", "rival")])
def test_what_is_meant_is_clear_behind_another_of_the_kind(kind, another):
    nexts = []
    for seed in range(200):
        rng = random.Random(seed)
        sentences = [re.split(r"(?<=\.) ", paragraph.text) for paragraph in article(subject(kind, rng), rng)]
        nexts += [after for text in sentences for before, after in itertools.pairwise(text) if another in before]
    assert len(nexts) > 50 and not any(re.search(rf"\b[Tt]he {kind}\b", sentence) for sentence in nexts)


@pytest.mark.parametrize("kind", KINDS)
def test_articles_are_text(kind):
    for seed in range(50):
        rng = random.Random(seed)
        about = subject(kind, rng)
        for paragraph in article(about, rng):
            text = paragraph.text
            assert about.name in re.split(r"(?<=\.) ", text)[0]
            assert text[0].isupper() or text[0] == '"'
            assert text.endswith(".") and not re.search(r"[{}]|  |\.\.|,,| [,.]|\. [a-z]", text)
