"""Records of published files: one JSON object a line, checked as they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.errors import TaskError


class Record:
    """One line's object, whose members are asked for by name and type."""

    def __init__(self, members: dict[str, Any], where: str):
        self.members = members
        self.where = where

    def text(self, *names: str, may_be_empty: bool = False) -> str:
        """The member with the first of these names that is there, in any case of letters."""
        value = self.any(*names)
        if not isinstance(value, str):
            raise self.error(f"expected text in {names[0]!r}, got {type(value).__name__}")
        if not value.strip() and not may_be_empty:
            raise self.error(f"{names[0]!r} is empty")
        return value

    def any(self, *names: str) -> Any:
        by_lower_case = {name.lower(): value for name, value in self.members.items()}
        for name in names:
            if name.lower() in by_lower_case:
                return by_lower_case[name.lower()]
        there = ", ".join(sorted(self.members)) or "no members"
        raise self.error(f"{' or '.join(map(repr, names))} is missing; there are {there}")

    def texts(self, name: str) -> list[str]:
        value = self.any(name)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise self.error(f"expected a list of texts in {name!r}")
        return value

    def error(self, message: str) -> TaskError:
        return TaskError(f"{self.where}: {message}")


def read(path: str | Path, limit: int | None = None) -> Iterator[Record]:
    """The records of a JSON-lines file, at most `limit` of them; empty lines are left out. A file without any is refused."""
    count = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if count == limit:
                    return
                if line.strip():
                    yield _record(line, f"{path}, line {number}")
                    count += 1
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror}") from error
    if not count:
        raise TaskError(f"{path} has no records")


def _record(line: bytes, where: str) -> Record:
    try:
        members = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TaskError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(members, dict):
        raise TaskError(f"{where}: expected an object, got {type(members).__name__}")
    return Record(members, where)
