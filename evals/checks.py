"""Checks of what a configuration says. Whatever is wrong is said with the names that would do."""

from __future__ import annotations

import difflib

KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "a table"}


class ConfigError(ValueError):
    """The configuration cannot be run; the message names the key and what would do."""


def check(key, value, known, where="", extra=()):
    """Whether `key` is one of `known`, a dict of the kinds that its value may have, or of a tuple of them."""
    if key not in known:
        raise ConfigError(f"{where}unknown key {key!r}{suggest(key, [*known, *extra])}")
    kinds = known[key] if isinstance(known[key], tuple) else (known[key],)
    accepted = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        raise ConfigError(f"{where}{key} is {value!r}; expected {' or '.join(KINDS[kind] for kind in kinds)}")


def suggest(key, known):
    near = difflib.get_close_matches(key, known, 1)
    return (f"; did you mean {near[0]!r}?" if near else ".") + f" Known: {', '.join(known)}"


def between(values, key, least, most, where=""):
    if key in values and not least <= values[key] <= most:  # what is not a number, as NaN, is not between either
        raise ConfigError(f"{where}{key} is {values[key]}; it may be {least} to {most}")
