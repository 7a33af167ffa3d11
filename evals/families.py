"""Methods of one family have names that differ in the number at their end: `locks 64` and `locks 128`. Reports put a family
into one row or on one line."""

from __future__ import annotations

import re

MANY = 20  # methods, from which on a picture or a table of all of them is hard to read


def split(method):
    """The name without the number at its end, and the number or None."""
    found = re.fullmatch(r"(.*\S) (\d+)", method)
    return (found[1], int(found[2])) if found else (method, None)


def families(methods):
    """The methods of each family by their number, in the order of the names; a single method is no family."""
    found = {}
    for method in methods:
        name, size = split(method)
        if size is not None:
            found.setdefault(name, {})[size] = method
    return {name: dict(sorted(members.items())) for name, members in found.items() if len(members) > 1}


def sizes(methods):
    return sorted({size for members in families(methods).values() for size in members})


def table(title, methods, text_of):
    """Rows of texts, a family each and a column for each number; the first is the header. Methods of no family follow, in the
    column of their number, or the same in all where they have none. No rows without families."""
    columns, members = sizes(methods), families(methods)
    rows = []
    for name, of_size in members.items():
        rows.append([name, *(text_of(of_size[size]) if size in of_size else "" for size in columns)])
    if not any(any(row[1:]) for row in rows):
        return []
    for method in methods:
        name, size = split(method)
        if name not in members and (size is None or size in columns):
            rows.append([name, *(text_of(method) if size in (None, column) else "" for column in columns)])
    return [[title, *map(str, columns)], *rows]


def groups(methods):
    """Pairs of a number and the methods to compare at it, those without one among them; all in one group where they are few."""
    columns = sizes(methods) if len(methods) > MANY else []
    if not columns:
        return [(None, list(methods))]
    return [(size, [method for method in methods if split(method)[1] in (size, None)]) for size in columns]
