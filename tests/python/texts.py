"""Prose and code that every Python installation carries, so that the tests need no data of ours."""

import inspect
import os
from pathlib import Path


def prose():
    """War and Peace from LOCKS_TEST_DATA; without it, the paragraphs of Python's own manual."""
    novel = Path(os.environ.get("LOCKS_TEST_DATA", "")) / "war_and_peace.txt"
    if os.environ.get("LOCKS_TEST_DATA") and novel.is_file():
        with open(novel, encoding="utf-8") as file:
            return file.read(1 << 17)
    from pydoc_data.topics import topics

    paragraphs = [
        " ".join(paragraph.split())
        for name in sorted(topics)
        for paragraph in topics[name].split("\n\n")
        if paragraph[:1].isupper() and len(paragraph) >= 200
    ]
    return "\n\n".join(dict.fromkeys(paragraphs))


def code():
    import argparse

    return inspect.getsource(argparse)
