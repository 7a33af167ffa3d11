"""Final answers of MATH-500 and AIME: what is in the last box of a solution, and whether it equals the reference.

The rules are those of the equality that was published with MATH (fractions, roots, units, degrees, spaces and signs of
currency are brought to one form), and beyond them numbers are equal by value, and bare lists and sets in any order. Nothing
is simplified: `2\\sqrt{2}` and `\\sqrt{8}` differ here, as they do there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

OPEN, CLOSE = "([{", ")]}"
ARGUMENT = r"(?:\{((?:[^{}]|\{[^{}]*\})*)\}|([^\s{}\\]|\\[a-zA-Z]+))"  # a group, one character or one command
FRACTION = re.compile(rf"\\frac\s*{ARGUMENT}\s*{ARGUMENT}")
ROOT = re.compile(rf"\\sqrt\s*{ARGUMENT}")
SLASH = re.compile(r"(?<![\w.}/)^])(\d+)\s*/\s*(\d+)(?![\w.{/(^])")
TEXT = r"\\(?:text|textrm|textbf|mbox|mathrm|mathbf)\s*\{([^{}]*)\}"
UNIT = re.compile(rf"(?<=[^\s])\s*{TEXT}(?:\^\{{?\d\}}?)?$")
NOTHING = re.compile(
    r"\\[!,;: ]|\\(?:left|right|displaystyle|quad|bigl|bigr|big)(?![a-zA-Z])"
    r"|\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])|°|\\?\$|\\?%|~"
)
NAMED = re.compile(r"^[a-zA-Z](?:_\{?\w\}?)?(?:\([a-zA-Z]\))?(?:=|\\in(?![a-zA-Z]))(?=.)")
ROW = "\0"  # for the end of a matrix's row, which is a command like those that are left out
LONGEST = 1000  # characters; no reference is nearly so long, and a longer answer is not taken apart
THOUSANDS = re.compile(r"^-?\d{1,3}(?:,\d{3})+(?:\.\d+)?$")


def boxed(text: str) -> str | None:
    """What is in the last `\\boxed{}` or `\\fbox{}`; None if there is none or it does not end."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    brace = re.compile(r"\\f?box(?:ed)?\s*\{").match(text, start) if start >= 0 else None
    if brace is None:
        single = re.compile(r"\\boxed\s+([^\s{}$]+)").match(text, start) if start >= 0 else None
        return single[1] if single else None
    depth = 0
    for place in range(brace.end() - 1, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return text[brace.end() : place]
    return None


def normalize(answer: str) -> str:
    """One form for what is written in several ways."""
    text = answer.strip().rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
    text = NOTHING.sub("", text.replace("\\\\", ROW)).strip()
    text = re.sub(TEXT, r"\1", UNIT.sub("", text))
    text = ROOT.sub(lambda m: f"\\sqrt{{{_either(m, 1)}}}", text)
    text = SLASH.sub(r"\\frac{\1}{\2}", _fractions(text))
    text = re.sub(r"\\frac\{-([^{}]*)\}", r"-\\frac{\1}", text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", re.sub(r"\s+", "", text))
    text = NAMED.sub("", text)
    text = re.sub(r"(?<![\d.])\.(?=\d)", "0.", text)
    if THOUSANDS.match(text):
        text = text.replace(",", "")
    choice = re.fullmatch(r"\(([A-Z])\)", text)
    return choice[1] if choice else text


def _fractions(text: str) -> str:
    """Both parts of each fraction in braces, those of fractions within fractions too."""
    return FRACTION.sub(lambda m: f"\\frac{{{_fractions(_either(m, 1))}}}{{{_fractions(_either(m, 3))}}}", text)


def _either(match: re.Match, group: int) -> str:
    """An argument with or without its braces."""
    return match[group] if match[group] is not None else match[group + 1]


def number(text: str) -> Fraction | None:
    """The value of an integer, a decimal number or a fraction of integers."""
    fraction = re.fullmatch(r"(-?)\\frac\{(-?\d+)\}\{(\d+)\}", text)
    if fraction and int(fraction[3]):
        return Fraction(int(fraction[2]), int(fraction[3])) * (-1 if fraction[1] else 1)
    return Fraction(text) if re.fullmatch(r"[+-]?\d+(?:\.\d*)?", text) else None


def equal(answer: str, reference: str) -> bool:
    """Whether two answers are the same as they are written, number by number in lists, tuples and intervals."""
    return _equal(normalize(answer), normalize(reference))


def _equal(one: str, other: str) -> bool:
    if one == other:
        return True
    values = number(one), number(other)
    if None not in values:
        return values[0] == values[1]
    if one.isalpha() and other.isalpha():
        return one.lower() == other.lower()
    (brackets, parts), (other_brackets, other_parts) = _parts(one), _parts(other)
    if brackets != other_brackets or len(parts) != len(other_parts) or (len(parts) == 1 and not brackets):
        return False
    if brackets in ("", "\\{\\}"):
        return _equal_in_any_order(parts, other_parts)
    return all(map(_equal, parts, other_parts))


def _equal_in_any_order(parts: Sequence[str], others: Sequence[str]) -> bool:
    left = list(others)
    for part in parts:
        match = next((other for other in left if _equal(part, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _parts(text: str) -> tuple[str, list[str]]:
    """The brackets around the whole text, if it has any, and what commas outside of all other brackets separate."""
    brackets = ""
    if text.startswith("\\{") and text.endswith("\\}"):
        brackets, text = "\\{\\}", text[2:-2]
    elif text[:1] in ("(", "[") and text[-1:] in (")", "]") and _encloses(text):
        brackets, text = text[0] + text[-1], text[1:-1]
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in OPEN) - (letter in CLOSE)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return brackets, parts


def _encloses(text: str) -> bool:
    """Whether the first bracket is closed by the last one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in OPEN) - (letter in CLOSE)
        if depth == 0:
            return place == len(text) - 1
    return False


def score(answer: str, references: Sequence[str]) -> float:
    """1 if the last box has the reference; an answer without a box, or cut off within it, is wrong."""
    found = boxed(answer)
    return float(
        found is not None and len(found) <= LONGEST and any(equal(found, reference) for reference in references)
    )
