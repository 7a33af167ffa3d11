"""InfiniteBench's metrics by task, as its evaluation defines them: 0 or 1 but for math_calc, the questions about books and
the summaries. Those of the same tasks with other contexts (tasks/retrieval.py) are scored in the same way."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scores_words import character_f1, qa_f1, rouge_l_sum

SEPARATORS = str.maketrans(dict.fromkeys("\n:\"'.,?!{}", " "))


def first_digits(answer: str, references: Sequence[str]) -> float:
    """passkey, number_string: the first run of digits is the reference."""
    digits = re.search("[0-9]+", answer)
    return float(digits is not None and digits[0] == references[0])


def value_of_key(answer: str, references: Sequence[str]) -> float:
    """kv_retrieval: the reference is one of the words, punctuation aside."""
    return float(references[0] in answer.translate(SEPARATORS).split())


def last_number(answer: str, references: Sequence[str]) -> float:
    """code_run: the last word is the number."""
    words = answer.translate(str.maketrans(dict.fromkeys("\n.`'\":", " "))).split()
    is_number = bool(words) and re.fullmatch("[+-]?[0-9]{1,100}", words[-1]) is not None
    return float(is_number and int(words[-1]) == int(references[0]))


def first_number(answer: str, references: Sequence[str]) -> float:
    """math_find: the first number without a sign is the reference. Equal values count where InfiniteBench stops with an
    error: `3.0` for 3."""
    number = re.search(r"\d+\.\d+|\d+", answer)
    return float(number is not None and float(number[0]) == float(references[0]))


def calculated(answer: str, references: Sequence[str]) -> float:
    """math_calc: the share of the references that the numbers in the answer agree with before the first that differs. Signs
    in the answer are not looked at. (InfiniteBench leaves out the first number for GPT-4 alone.)"""
    agreed = 0
    for given, wanted in zip(re.findall("[0-9]+", answer), references):
        if (given.lstrip("0") or "0") != wanted:
            break
        agreed += 1
    return agreed / len(references)


def mentioned_option(answer: str, references: Sequence[str]) -> float:
    """code_debug; references are the function's name and its letter. Right are an answer that begins with the letter and a
    stop or colon, and one with the letter or the name behind `answer is:`, `is:`, `answer:` or `correct option is:`."""
    name, letter = references
    answer = answer.strip()
    if answer[:2] in (f"{letter}.", f"{letter}:"):
        return 1.0
    plain = re.sub("[\n`'\"*-]|[Oo]ption", " ", answer)
    after = _after_phrase(re.sub(" +", " ", plain), ("answer is:", "is:", "answer:", "correct option is:"))
    return float(after is not None and after.startswith((letter, name)))


def chosen_letter(answer: str, references: Sequence[str]) -> float:
    """longbook_choice_eng; references are the option's text and its letter. The letter is the answer's first one if that is
    A to D, else what is behind `answer is:` or the like, else the first word that is A to D."""
    answer = answer.strip()
    if not answer:
        return 0.0
    if answer[0] in "ABCD":
        return float(answer[0] in references)
    if answer in references:
        return 1.0
    plain = re.sub(" +", " ", re.sub("[\n\"'.,?!{}]", " ", answer))
    after = _after_phrase(plain, ("answer is:", "answer:", "answer is", "option is"))
    if after is not None:
        return float(after.startswith(tuple(references)))
    first = next((word for word in plain.split() if word in "ABCD"), None)
    return float(first is not None and first in references)


def _after_phrase(text: str, phrases: Sequence[str]) -> str | None:
    """What follows the first of the phrases that occurs and the character behind it; None if none occurs."""
    for phrase in phrases:
        place = text.find(phrase)
        if place >= 0:
            return text[place + len(phrase) + 1 :]
    return None


def named_character(answer: str, references: Sequence[str]) -> float:
    """longdialogue_qa_eng: the first reference is one of the words in upper case."""
    return float(references[0] in answer.strip().translate(SEPARATORS).upper().split())


METRICS = {
    "passkey": first_digits,
    "number_string": first_digits,
    "kv_retrieval": value_of_key,
    "longbook_sum_eng": lambda answer, references: max(rouge_l_sum(answer, reference) for reference in references),
    "longbook_qa_eng": lambda answer, references: max(qa_f1(answer, reference) for reference in references),
    "longbook_qa_chn": lambda answer, references: max(character_f1(answer, reference) for reference in references),
    "longbook_choice_eng": chosen_letter,
    "longdialogue_qa_eng": named_character,
    "math_find": first_number,
    "math_calc": calculated,
    "code_run": last_number,
    "code_debug": mentioned_option,
}
