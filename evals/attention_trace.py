"""What decode steps attended, in a file: docs/EVALS.md has the format. A file from elsewhere is checked whole before it is
used; one whose writer was stopped holds the steps until then."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MAGIC = b"locks attention trace 2\n"
PAGE_TOKENS = 16
MAX_BYTES = 256 << 20
MAX_LINE = 4096  # bytes of a record's line
MAX_COUNT = 1 << 20  # tokens, lists
MAX_NUMBER = 1 << 62  # bytes that a layer reads, numbers of steps and sequences
SLACK = 1e-3  # of masses, which are sums of rounded shares
KNOWN_MASSES = ("true_mass", "covered_mass", "estimated_mass", "attended_mass", "completed_mass")
NEEDED_MASSES = KNOWN_MASSES[:2]
BYTES = ("score", "attend", "complete", "dense")
NUMBERS = ("step", "row", "cache", "sequence", "layer")


class TraceError(ValueError):
    """The file is no trace that this program reads; the message says why."""


@dataclass(frozen=True)
class Layer:
    """Of one step. A list is the query heads that choose together; its masses are means over them."""

    layer: int
    whole: bool  # everything was attended
    bytes: dict[str, int]  # BYTES
    masses: dict[str, np.ndarray]  # by name, float16 [lists, pages]: shares of the attention
    attended: np.ndarray  # uint16 [lists, pages]: bit t says whether token t of the page was attended
    completed: np.ndarray  # likewise, whether the page's summary stood in for it

    @property
    def lists(self):
        return len(self.attended)


@dataclass(frozen=True)
class Step:
    """Of one decoded token."""

    step: int
    row: int  # of the tokens that were decoded together
    cache: int
    sequence: int
    tokens: int  # that it sees, itself included
    layers: list[Layer]

    @property
    def pages(self):
        return -(-self.tokens // PAGE_TOKENS)

    def bytes(self, name):
        return sum(layer.bytes[name] for layer in self.layers)


@dataclass(frozen=True)
class Trace:
    model: str  # "" where it is not known
    settings: dict
    masses: list[str]  # of KNOWN_MASSES
    steps: list[Step]
    tokens: list[str] | None = None  # the text of each token, where it is known
    left_out: int = 0  # steps without all the layers that the first one of their cache has

    def save(self, path):
        header = {"model": self.model, "settings": self.settings, "masses": self.masses, "tokens": self.tokens}
        parts = [MAGIC, json.dumps(header).encode(), b"\n"]
        for step in self.steps:
            for layer in step.layers:
                parts += _record(self.masses, step, layer)
        size = sum(len(part) for part in parts)
        if size > MAX_BYTES:
            raise TraceError(f"the trace would have {size:,} bytes, and {MAX_BYTES:,} is the limit; take fewer tokens")
        Path(path).write_bytes(b"".join(parts))


def _record(masses, step, layer):
    line = {name: getattr(step, name) for name in NUMBERS[:-1]}
    line |= {"layer": layer.layer, "tokens": step.tokens, "lists": layer.lists, "whole": layer.whole, "bytes": layer.bytes}
    arrays = [layer.masses[name].astype("<f2") for name in masses]
    arrays += [layer.attended.astype("<u2"), layer.completed.astype("<u2")]
    return [json.dumps(line).encode(), b"\n", *(array.tobytes() for array in arrays)]


def load(path):
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _parse(data)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None


def _parse(data):
    if len(data) > MAX_BYTES:
        raise TraceError(f"more than {MAX_BYTES:,} bytes")
    if not data.startswith(MAGIC):
        raise TraceError("not a trace of version 2")
    end = data.find(b"\n", len(MAGIC))
    if end < 0:
        raise TraceError("the header has no end")
    header = _object(data[len(MAGIC) : end], "the header")
    _check_header(header)
    tokens = header.get("tokens")
    found, at = {}, end + 1
    while at < len(data):
        record = _read_record(data, at, header["masses"], MAX_COUNT if tokens is None else len(tokens))
        if record is None:  # where the writer was stopped
            break
        at = _add(found, *record)
    whole, left_out = _whole_steps(found.values())
    if not whole:
        raise TraceError("no step is in it")
    return Trace(header["model"], header["settings"], header["masses"], whole, tokens, left_out)


def _read_record(data, begin, masses, most_tokens):
    """The record's line, its layer and where the next one begins; None where the file ends before this one does."""
    where = f"the record at byte {begin:,}"
    end = data.find(b"\n", begin, begin + MAX_LINE)
    if end < 0:
        if len(data) - begin < MAX_LINE:
            return None
        raise TraceError(f"{where} has a line without an end")
    line = _object(data[begin:end], where)
    for name in NUMBERS:
        _check_number(line, name, 0, MAX_NUMBER, where)
    _check_number(line, "tokens", 1, most_tokens, where)
    _check_number(line, "lists", 1, MAX_COUNT, where)
    if type(line.get("whole")) is not bool:
        raise TraceError(f"{where}: whole is neither true nor false")
    _check_bytes(line.get("bytes"), where)
    pages = -(-line["tokens"] // PAGE_TOKENS)
    count, at = line["lists"] * pages, end + 1
    if at + 2 * count * (len(masses) + 2) > len(data):
        return None
    arrays = []
    for kind in ["<f2"] * len(masses) + ["<u2"] * 2:
        arrays.append(np.frombuffer(data, kind, count, at).reshape(line["lists"], pages))
        at += 2 * count
    for name, mass in zip(masses, arrays):
        if not ((mass >= 0) & (mass <= 1 + SLACK)).all():
            raise TraceError(f"{where}: {name} has values that are no shares")
    attended, completed = arrays[-2:]
    if ((attended | completed)[:, -1] >> (line["tokens"] - PAGE_TOKENS * (pages - 1))).any():
        raise TraceError(f"{where}: tokens behind the last one are attended")
    if (attended & completed).any():
        raise TraceError(f"{where}: a summary stands in for tokens that are attended")
    layer = Layer(line["layer"], line["whole"], line["bytes"], dict(zip(masses, arrays)), attended, completed)
    return line, layer, at


def _add(found, line, layer, at):
    """Puts the layer to its step; `at` is handed on."""
    step = found.setdefault(
        (line["step"], line["row"]),
        Step(line["step"], line["row"], line["cache"], line["sequence"], line["tokens"], []),
    )
    if (step.cache, step.sequence, step.tokens) != (line["cache"], line["sequence"], line["tokens"]):
        raise TraceError(f"the layers of step {step.step} are not of the same token")
    if step.layers and layer.layer <= step.layers[-1].layer:
        raise TraceError(f"layer {layer.layer} of step {step.step} is not where it belongs")
    step.layers.append(layer)
    return at


def _whole_steps(steps):
    """Those with the layers that the first one of their cache has, and the number of the others."""
    expected, whole, left_out = {}, [], 0
    for step in steps:
        layers = [layer.layer for layer in step.layers]
        if layers == expected.setdefault(step.cache, layers):
            whole.append(step)
        else:
            left_out += 1
    return whole, left_out


def _object(text, where):
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise TraceError(f"{where} is not an object")
    return found


def _check_number(values, name, least, most, where):
    if type(values.get(name)) is not int or not least <= values[name] <= most:
        raise TraceError(f"{where}: {name} is {str(values.get(name))[:40]}")


def _check_bytes(read, where):
    if not isinstance(read, dict) or set(read) != set(BYTES):
        raise TraceError(f"{where}: bytes is not a table of {', '.join(BYTES)}")
    for name in BYTES:
        _check_number(read, name, 0, MAX_NUMBER, f"{where}: bytes")


def _check_header(header):
    if not isinstance(header.get("model"), str):
        raise TraceError("model is not a text")
    settings, masses, tokens = header.get("settings"), header.get("masses"), header.get("tokens")
    if not isinstance(settings, dict) or not all(isinstance(value, (str, int, float)) for value in settings.values()):
        raise TraceError("settings is not a table of numbers and texts")
    known = isinstance(masses, list) and all(name in KNOWN_MASSES for name in masses)
    if not known or len(set(masses)) != len(masses) or not set(NEEDED_MASSES) <= set(masses):
        needed = ", ".join(NEEDED_MASSES)
        raise TraceError(f"masses is not a list of {', '.join(KNOWN_MASSES)}, of which {needed} are needed")
    if tokens is not None and not (isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)):
        raise TraceError("tokens is not a list of texts")
