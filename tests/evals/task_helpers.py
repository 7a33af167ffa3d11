"""Finds the modules of evals/, and counts tokens as plain as can be."""

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "evals"))

from tasks.sizing import prompt  # noqa: E402


class Counter:
    """Up to five letters, a digit or any other mark is a token. Counts how often it was asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self, text):
        self.calls += 1
        return len(re.findall(r"[A-Za-z]{1,5}|\d|[^\sA-Za-z\d]|\n", text))


def size(sample):
    """What counts against the tokens that were asked for."""
    return Counter()(prompt(sample)) + sample.new_tokens


def write_lines(path, *records):
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path
