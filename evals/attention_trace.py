"""What one decode step attended, in a file: docs/EVALS.md has the format. A file from elsewhere is checked whole before it
is used."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MAGIC = b"locks attention trace 1\n"
PAGE_TOKENS = 16
MAX_BYTES = 256 << 20
MAX_COUNT = 1 << 20  # layers, heads, pages
MAX_READ = 1 << 62  # bytes
SLACK = 1e-3  # of masses, which are sums of rounded shares
MASSES = ("true_mass", "covered_mass", "attended_mass", "completed_mass")
BYTES = ("score", "attend", "complete", "dense")


class TraceError(ValueError):
    """The file is no trace that this program reads; the message says why."""


@dataclass(frozen=True)
class Trace:
    """Of one step and one request. Masses are shares of a query head's attention, [layers, query heads, pages]."""

    model: str
    settings: dict  # of the library's Config
    tokens: list[str]  # the text of each token of the context, the one that is decoded included
    bytes: dict[str, int]  # read in the step, all layers together: BYTES
    true_mass: np.ndarray  # float32: of each page, by exact attention over everything
    covered_mass: np.ndarray  # float32: the part of it that is of attended tokens
    attended_mass: np.ndarray  # float32: what the step gave to the page's attended tokens
    completed_mass: np.ndarray  # float32: what it gave to the stand-in for the page's tokens, where there was one
    attended: np.ndarray  # uint16: bit t says whether token t of the page was attended

    @property
    def layers(self):
        return self.true_mass.shape[0]

    @property
    def query_heads(self):
        return self.true_mass.shape[1]

    @property
    def pages(self):
        return self.true_mass.shape[2]

    def save(self, path):
        header = {
            "model": self.model,
            "settings": self.settings,
            "layers": self.layers,
            "query_heads": self.query_heads,
            "pages": self.pages,
            "bytes": self.bytes,
            "tokens": self.tokens,
        }
        arrays = [getattr(self, name).astype("<f4").tobytes() for name in MASSES]
        data = b"".join([MAGIC, json.dumps(header).encode(), b"\n", *arrays, self.attended.astype("<u2").tobytes()])
        if len(data) > MAX_BYTES:
            raise TraceError(f"the trace would have {len(data):,} bytes, and {MAX_BYTES:,} is the limit; take fewer tokens")
        Path(path).write_bytes(data)


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
        raise TraceError("not a trace of version 1")
    end = data.find(b"\n", len(MAGIC))
    if end < 0:
        raise TraceError("the header has no end")
    try:
        header = json.loads(data[len(MAGIC) : end])
    except (ValueError, RecursionError) as error:
        raise TraceError(f"the header is not JSON: {error}") from None
    shape = _checked(header)
    count = math.prod(shape)
    expected = end + 1 + count * (4 * len(MASSES) + 2)
    if len(data) != expected:
        raise TraceError(f"{len(data):,} bytes, and its header means {expected:,}")
    arrays, begin = {}, end + 1
    for name in MASSES:
        arrays[name] = np.frombuffer(data, "<f4", count, begin).reshape(shape)
        begin += 4 * count
        if not ((arrays[name] >= 0) & (arrays[name] <= 1 + SLACK)).all():
            raise TraceError(f"{name} has values that are no shares")
    attended = np.frombuffer(data, "<u2", count, begin).reshape(shape)
    if (attended[..., -1] >> (len(header["tokens"]) - PAGE_TOKENS * (shape[2] - 1))).any():
        raise TraceError("tokens behind the last one are attended")
    kept = {key: header[key] for key in ("model", "settings", "tokens", "bytes")}
    return Trace(**kept, **arrays, attended=attended)


def _checked(header):
    """The shape of the arrays; TraceError where a member of the header is not what it has to be."""
    if not isinstance(header, dict):
        raise TraceError("the header is not an object")
    shape = []
    for key in ("layers", "query_heads", "pages"):
        value = header.get(key)
        if type(value) is not int or not 1 <= value <= MAX_COUNT:
            raise TraceError(f"{key} is {str(value)[:40]}")
        shape.append(value)
    tokens, settings, read = header.get("tokens"), header.get("settings"), header.get("bytes")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise TraceError("tokens is not a list of texts")
    if -(-len(tokens) // PAGE_TOKENS) != shape[2]:
        raise TraceError(f"{len(tokens)} tokens in {shape[2]} pages")
    if not isinstance(header.get("model"), str):
        raise TraceError("model is not a text")
    if not isinstance(settings, dict) or not all(isinstance(value, (str, int, float)) for value in settings.values()):
        raise TraceError("settings is not a table of numbers and texts")
    if not isinstance(read, dict) or set(read) != set(BYTES):
        raise TraceError(f"bytes is not a table of {', '.join(BYTES)}")
    if not all(type(count) is int and 0 <= count <= MAX_READ for count in read.values()):
        raise TraceError("bytes has counts that no step reads")
    return shape
