"""LongBench v1's metrics by set, as its evaluation defines them; a set's score is the mean of its samples' times 100."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from scores_words import edit_similarity, qa_f1, qa_f1_chinese, rouge_l, rouge_l_chinese

FIRST_LINE = {"trec", "triviaqa", "samsum", "lsht"}  # of the answer, and no more of it


def share_of_numbers(answer: str, truth: str) -> float:
    """The share of the numbers in the answer that are the right one; 0 if there are none."""
    numbers = re.findall(r"\d+", answer)
    return numbers.count(truth) / len(numbers) if numbers else 0.0


def count(answer: str, reference: str, classes: Sequence[str]) -> float:
    """`passage_count`."""
    return share_of_numbers(answer, reference)


def retrieval(answer: str, reference: str, classes: Sequence[str]) -> float:
    """`passage_retrieval_*`: the reference is `Paragraph 7` or `段落7`."""
    number = re.search(r"(?:Paragraph |段落)(\d+)", reference)
    return share_of_numbers(answer, number[1]) if number else 0.0


def classification(answer: str, reference: str, classes: Sequence[str]) -> float:
    """`trec` and `lsht`: 1 over the number of class names in the answer if the right one is among them. Names that are part
    of the right one do not count; as published, the name behind one that was dropped is not looked at."""
    named = [name for name in classes if name in answer]
    i = 0
    while i < len(named):
        if named[i] != reference and named[i] in reference:
            named.pop(i)
        i += 1
    return 1 / len(named) if reference in named else 0.0


def code_similarity(answer: str, reference: str, classes: Sequence[str]) -> float:
    """`lcc` and `repobench-p`: edit similarity of the first line without a backtick, a `#` or a `//`."""
    lines = answer.lstrip("\n").split("\n")
    first = next((line for line in lines if "`" not in line and "#" not in line and "//" not in line), "")
    return edit_similarity(first, reference)


def _of_texts(metric: Callable[[str, str], float]):
    return lambda answer, reference, classes: metric(answer, reference)


METRICS: dict[str, Callable[[str, str, Sequence[str]], float]] = {
    **dict.fromkeys(["narrativeqa", "qasper", "multifieldqa_en", "hotpotqa"], _of_texts(qa_f1)),
    **dict.fromkeys(["2wikimqa", "musique", "triviaqa"], _of_texts(qa_f1)),
    "multifieldqa_zh": _of_texts(qa_f1_chinese),
    **dict.fromkeys(["gov_report", "qmsum", "multi_news", "samsum"], _of_texts(rouge_l)),
    **dict.fromkeys(["dureader", "vcsum"], _of_texts(rouge_l_chinese)),
    **dict.fromkeys(["trec", "lsht"], classification),
    **dict.fromkeys(["passage_retrieval_en", "passage_retrieval_zh"], retrieval),
    "passage_count": count,
    **dict.fromkeys(["lcc", "repobench-p"], code_similarity),
}


def score(name: str, answer: str, references: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The best over the references, from 0 to 1."""
    if name in FIRST_LINE:
        answer = answer.lstrip("\n").split("\n")[0]
    return max((METRICS[name](answer, reference, classes) for reference in references), default=0.0)
