"""RULER's questions about documents: invented ones, or those of the published JSON file, SQuAD's for `qa_1` and HotpotQA's
for `qa_2`."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sample import Sample
from tasks import ruler_documents
from tasks.errors import TaskError

NEW_TOKENS = 32
INSTRUCTION = "Answer the question from the documents. Give the answer alone and no other words."


@dataclass(frozen=True)
class Question:
    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]  # what the answer is in
    related: tuple[str, ...] = ()  # of the same article: these come first among the others


@dataclass(frozen=True)
class Questions:
    questions: list[Question]
    documents: list[str]  # all different ones


class Replayed:
    """What an iterator gives, from its beginning again for everybody who iterates."""

    def __init__(self, source: Iterator[str]):
        self._source = source
        self._found: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for i in itertools.count():
            if i == len(self._found):
                self._found.append(next(self._source))
            yield self._found[i]


def published(task: str, index: int, seed: str, questions: Questions) -> Callable[[int], Sample]:
    question = questions.questions[index % len(questions.questions)]
    others = _others(question, questions, random.Random(f"{seed}/others"))
    if not others:
        raise TaskError(f"{task}: the file has no document beside those of the question {question.question!r}")
    return _builder(task, index, seed, question, itertools.cycle(others))


def made_up(task: str, index: int, seed: str) -> Callable[[int], Sample]:
    asked, others = ruler_documents.MADE_UP[task](random.Random(f"{seed}/documents"))
    return _builder(task, index, seed, Question(asked.question, (asked.answer,), asked.documents), others)


def _builder(task: str, index: int, seed: str, question: Question, endless: Iterator[str]) -> Callable[[int], Sample]:
    """Makes the sample with n words of other documents, the last of which is cut where the words end."""
    others = Replayed(endless)

    def build(n: int) -> Sample:
        documents = [*question.documents, *_first_words(others, n)]
        random.Random(f"{seed}/order").shuffle(documents)
        listed = "\n\n".join(f"Document {i}:\n{document}" for i, document in enumerate(documents, 1))
        return Sample(
            task=f"ruler/{task}",
            index=index,
            context=f"{INSTRUCTION}\n\nThe documents:\n\n{listed}\n\n",
            question=f"{INSTRUCTION}\n\nQuestion: {question.question}",
            answers=question.answers,
            new_tokens=NEW_TOKENS,
            prefix=" Answer:",
            details={"documents": len(documents)},
        )

    return build


def _others(question: Question, questions: Questions, rng: random.Random) -> list[str]:
    related = [document for document in question.related if document not in question.documents]
    known = {*question.documents, *related}
    unrelated = [document for document in questions.documents if document not in known]
    rng.shuffle(related)
    rng.shuffle(unrelated)
    return related + unrelated


def _first_words(documents: Iterable[str], n: int) -> list[str]:
    """Documents of n words in all."""
    found = []
    for document in documents:
        if n <= 0:
            break
        words = document.split(" ")
        found.append(document if len(words) <= n else " ".join(words[:n]))
        n -= len(words)
    return found


def read_squad(path: str | Path) -> Questions:
    """SQuAD 1.1 or 2.0; questions without an answer are left out."""
    articles = _member(_load(path), "data", list, f"{path}")
    found = []
    for a, article in enumerate(articles):
        where = f"{path}: data[{a}]"
        paragraphs = _member(article, "paragraphs", list, where)
        texts = [_member(p, "context", str, f"{where}.paragraphs[{i}]") for i, p in enumerate(paragraphs)]
        for p, paragraph in enumerate(paragraphs):
            inside = f"{where}.paragraphs[{p}]"
            for q, entry in enumerate(_member(paragraph, "qas", list, inside)):
                if not _is(entry, dict, f"{inside}.qas[{q}]").get("is_impossible"):
                    found.append(_squad_question(entry, texts[p], texts, f"{inside}.qas[{q}]"))
    return _checked(path, found, [document for question in found for document in (*question.documents, *question.related)])


def _squad_question(entry, text, texts, where) -> Question:
    answers = _member(entry, "answers", list, where)
    if not answers:
        raise TaskError(f"{where}: expected at least one of 'answers'")
    found = [_member(answer, "text", str, f"{where}.answers[{i}]") for i, answer in enumerate(answers)]
    return Question(_member(entry, "question", str, where), tuple(dict.fromkeys(found)), (text,), tuple(texts))


def read_hotpotqa(path: str | Path) -> Questions:
    """HotpotQA with distractors: every document of a question's context is kept, as RULER does."""
    found = []
    for e, entry in enumerate(_is(_load(path), list, f"{path}")):
        where = f"{path}: [{e}]"
        documents = []
        for d, document in enumerate(_member(entry, "context", list, where)):
            if not (isinstance(document, list) and len(document) == 2 and isinstance(document[1], list)):
                raise TaskError(f"{where}.context[{d}]: expected [title, [sentence, ...]]")
            documents.append(f"{document[0]}\n{''.join(document[1])}")
        answer = _member(entry, "answer", str, where)
        found.append(Question(_member(entry, "question", str, where), (answer,), tuple(documents)))
    return _checked(path, found, [document for question in found for document in question.documents])


READERS = {"qa_1": read_squad, "qa_2": read_hotpotqa}


def _load(path):
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not a UTF-8 text file: {error.reason} at byte {error.start}") from error


def _is(value, kind, where):
    if not isinstance(value, kind):
        raise TaskError(f"{where}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _member(value, name, kind, where):
    if name not in _is(value, dict, where):
        raise TaskError(f"{where}: {name!r} is missing")
    return _is(value[name], kind, f"{where}.{name}")


def _checked(path, questions, documents) -> Questions:
    if not questions:
        raise TaskError(f"{path} has no question with an answer")
    return Questions(questions, sorted({*documents}))
