"""How much of a reference text an answer has: F1 over words, ROUGE-L, similarity of edits. Scores are from 0 to 1."""

from __future__ import annotations

import difflib
import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
# What is removed from Chinese answers beside ASCII punctuation: CJK and full-width marks, quotation marks, dashes, dots.
CHINESE_PUNCTUATION = re.compile(
    "[\u3001-\u3003\u300b-\u3011\u3014-\u301f\u3030\u303e\u303f\uff01-\uff0d\uff0f\uff1a-\uff20\uff3b-\uff40"
    "\uff5b-\uff64\u2013\u2014\u2018\u2019\u201b-\u201f\u2026\u2027\ufe4f]"
)
CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
SEGMENTS = re.compile(rf"[{CHINESE}]|[^\W_{CHINESE}]+|\s+|[^\w\s]|_", re.UNICODE)


def normalize(text: str) -> str:
    """SQuAD's normalisation, which LongBench and InfiniteBench use: lower case, no punctuation, no articles."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", bare).split())


def normalize_chinese(text: str) -> str:
    """Lower case, no punctuation of either kind, no white space."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return "".join(CHINESE_PUNCTUATION.sub("", bare).split())


def f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """The harmonic mean of precision and recall over tokens with their counts."""
    same = (Counter(answer) & Counter(reference)).total()
    return 2 * same / (len(answer) + len(reference)) if same else 0.0


def qa_f1(answer: str, reference: str) -> float:
    """F1 over the words of the normalised texts."""
    return f1(normalize(answer).split(), normalize(reference).split())


def segments(text: str) -> list[str]:
    """A Chinese text in tokens without a dictionary: each Chinese character by itself, runs of other letters and digits,
    single punctuation marks, runs of white space. jieba, which LongBench uses, joins characters into words."""
    return SEGMENTS.findall(text)


def qa_f1_chinese(answer: str, reference: str) -> float:
    """LongBench's F1 for Chinese, over `segments` where LongBench has jieba's words. A word that is half right counts half
    here and nothing there, so scores are somewhat higher."""
    own, other = ([*filter(None, map(normalize_chinese, segments(text)))] for text in (answer, reference))
    return f1(own, other)


def character_f1(answer: str, reference: str) -> float:
    """InfiniteBench's F1 for Chinese: every character of the normalised text is a token."""
    return f1(normalize_chinese(answer), normalize_chinese(reference))


def edit_similarity(answer: str, reference: str) -> float:
    """fuzzywuzzy's `ratio` in hundredths, as it is without python-Levenshtein: twice the characters in difflib's matching
    blocks over all characters; 0 if one text is empty."""
    if answer == reference:
        return 1.0
    if not answer or not reference:
        return 0.0
    return round(100 * difflib.SequenceMatcher(None, answer, reference).ratio()) / 100


def rouge_l(answer: str, reference: str) -> float:
    """The F measure that the Python package `rouge` calls rouge-l, which LongBench uses: texts are split into sentences at
    full stops and into words at spaces; of the longest common subsequences of each sentence of the reference with each of
    the answer, the union of the different words counts, over the different words of each text.

    The package gives up on sentences of some 500 words and more, and LongBench then counts 0; here they are compared too."""
    own, other = _rouge_sentences(answer), _rouge_sentences(reference)
    if not own or not other:
        return 0.0
    common = {
        wanted[place] for wanted in other for given in own for place in common_places(wanted, given, from_reference=False)
    }
    precision = len(common) / len({word for sentence in own for word in sentence})
    recall = len(common) / len({word for sentence in other for word in sentence})
    return 2 * precision * recall / (precision + recall + 1e-8)


def _rouge_sentences(text: str) -> list[list[str]]:
    return [" ".join(sentence.split()).split(" ") for sentence in text.split(".") if sentence]


def rouge_l_chinese(answer: str, reference: str) -> float:
    """`rouge_l` over `segments` where LongBench has jieba's words."""
    return rouge_l(" ".join(segments(answer)), " ".join(segments(reference)))


def rouge_l_sum(answer: str, reference: str) -> float:
    """The F measure that `rouge_score` calls rougeLsum, without stemming, which InfiniteBench uses: sentences are lines,
    words are runs of a to z and 0 to 9 in lower case; of each line of the reference, the words in its longest common
    subsequence with any line of the answer count, each at most as often as it occurs in either text."""
    own, other = ([re.findall("[a-z0-9]+", line.lower()) for line in text.split("\n")] for text in (answer, reference))
    left = Counter(word for line in own for word in line) & Counter(word for line in other for word in line)
    hits = 0
    for wanted in other:
        for place in sorted({place for given in own for place in common_places(wanted, given, from_reference=True)}):
            if left[wanted[place]] > 0:
                left[wanted[place]] -= 1
                hits += 1
    return 2 * hits / (sum(map(len, own)) + sum(map(len, other))) if hits else 0.0


def common_places(reference: Sequence[str], answer: Sequence[str], from_reference: bool) -> list[int]:
    """Where the words of a longest common subsequence stand in the reference. Of several, the one found from the end by
    leaving out a word of the reference first (as `rouge_score` does), or of the answer (as `rouge` does)."""
    lengths = [[0] * (len(answer) + 1)]
    for word in reference:
        above, row = lengths[-1], [0]
        for j, other in enumerate(answer):
            row.append(above[j] + 1 if word == other else max(above[j + 1], row[j]))
        lengths.append(row)
    places, i, j = [], len(reference), len(answer)
    while i > 0 and j > 0:
        without_reference, without_answer = lengths[i - 1][j], lengths[i][j - 1]
        if reference[i - 1] == answer[j - 1]:
            i, j = i - 1, j - 1
            places.append(i)
        elif without_reference > without_answer or (from_reference and without_reference == without_answer):
            i -= 1
        else:
            j -= 1
    return places[::-1]
