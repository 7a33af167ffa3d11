"""The file that holds what steps attended: what is read of it, and what is refused."""

import dataclasses
import json
import random

import numpy as np
import pytest

import fake_engine  # noqa: F401 - finds evals

import attention_trace  # noqa: E402
import inspect_page  # noqa: E402
from attention_trace import BYTES, MAGIC, TraceError  # noqa: E402
from made_trace import made, made_layer  # noqa: E402


def same(one, other):
    """Whether two layers are."""
    fields = "layer", "whole", "bytes"
    return (
        all(getattr(one, field) == getattr(other, field) for field in fields)
        and one.masses.keys() == other.masses.keys()
        and all(np.array_equal(one.masses[name], other.masses[name]) for name in one.masses)
        and np.array_equal(one.attended, other.attended)
        and np.array_equal(one.completed, other.completed)
    )


def expect_same(got, trace):
    assert (got.model, got.settings, got.masses, got.tokens) == (trace.model, trace.settings, trace.masses, trace.tokens)
    assert len(got.steps) == len(trace.steps)
    for one, other in zip(got.steps, trace.steps):
        assert dataclasses.replace(one, layers=[]) == dataclasses.replace(other, layers=[])
        assert len(one.layers) == len(other.layers) and all(map(same, one.layers, other.layers))


def test_a_trace_is_the_same_behind_a_file(tmp_path):
    for trace in (made(), made(steps=4), made(text=None), made(masses=("covered_mass", "true_mass", "attended_mass"))):
        trace.save(tmp_path / "x")
        expect_same(attention_trace.load(tmp_path / "x"), trace)


def test_rows_and_caches_that_alternate_are_told_apart(tmp_path):
    chance, path = np.random.default_rng(1), tmp_path / "x"
    made(layers=1).save(path)
    header = b"\n".join(path.read_bytes().split(b"\n", 2)[:2]) + b"\n"
    # Two rows of a step, layer after layer, and in between another cache of another model.
    order = [(0, 0, 0, 40, 0), (0, 1, 0, 20, 0), (1, 0, 1, 33, 0), (0, 0, 0, 40, 1), (0, 1, 0, 20, 1)]
    parts = []
    for step, row, cache, tokens, layer in order:
        found = attention_trace.Step(step, row, cache, 5 + row, tokens, [])
        parts += attention_trace._record(made().masses, found, made_layer(chance, layer, 2 + cache, tokens))
    path.write_bytes(header.replace(b'"tokens": [', b'"texts": [') + b"".join(parts))
    trace = attention_trace.load(path)
    found = [(step.step, step.row, step.cache, step.sequence, step.tokens, len(step.layers)) for step in trace.steps]
    assert found == [(0, 0, 0, 5, 40, 2), (0, 1, 0, 6, 20, 2), (1, 0, 1, 5, 33, 1)]
    inspect_page.page(trace)


def test_a_file_that_ends_anywhere_holds_the_steps_until_there(tmp_path):
    trace, path = made(layers=3, lists=2, steps=3, text=None), tmp_path / "x"
    trace.save(path)
    whole = path.read_bytes()
    begins = [at for at in range(len(whole)) if whole.startswith(b'{"step"', at)]
    assert len(begins) == 9
    ends = [*begins[1:], len(whole)]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        layers = sum(end <= size for end in ends)
        if layers == 0:
            with pytest.raises(TraceError):
                attention_trace.load(path)
            continue
        got = attention_trace.load(path)
        # How many layers there are is known from the second step on.
        assert len(got.steps) == max(1, layers // 3) and got.left_out == (layers > 3 and layers % 3 > 0)


def test_steps_with_other_layers_are_counted_and_left_out(tmp_path):
    trace = made(layers=3, steps=4)
    del trace.steps[1].layers[2]
    trace.save(tmp_path / "x")
    got = attention_trace.load(tmp_path / "x")
    assert [step.step for step in got.steps] == [0, 2, 3] and got.left_out == 1
    assert "1 steps without all their layers are left out" in inspect_page.facts(got)


def changed(path, trace, line, **changes):
    """Writes the trace with other members in one of its lines: 0 is the header, the others are records."""
    trace.save(path)
    data = path.read_bytes()
    begin = len(MAGIC) if line == 0 else [at for at in range(len(data)) if data.startswith(b'{"step"', at)][line - 1]
    end = data.index(b"\n", begin)
    values = {key: value for key, value in {**json.loads(data[begin:end]), **changes}.items() if value != "gone"}
    path.write_bytes(data[:begin] + json.dumps(values).encode() + data[end:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ["x", 5]}, "tokens is not a list of texts"),
        ({"tokens": ["x"] * 34}, "the record at byte .*: tokens is 35"),
        ({"model": None}, "model is not a text"),
        ({"settings": {"a": []}}, "settings is not a table"),
        ({"masses": ["true_mass"]}, "masses is not a list of"),
        ({"masses": ["true_mass", "covered_mass", "mass"]}, "masses is not a list of"),
        ({"masses": ["true_mass", "covered_mass", "true_mass"]}, "masses is not a list of"),
        ({"masses": ["true_mass", "covered_mass", []]}, "masses is not a list of"),
        ({"masses": 5}, "masses is not a list of"),
    ],
)
def test_a_header_that_says_something_else_is_refused(tmp_path, changes, message):
    changed(tmp_path / "x", made(), 0, **changes)
    with pytest.raises(TraceError, match=f"x: .*{message}"):
        attention_trace.load(tmp_path / "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": -1}, "step is -1"),
        ({"layer": "gone"}, "layer is None"),
        ({"layer": 0}, "layer 0 of step 0 is not where it belongs"),
        ({"row": True}, "row is True"),
        ({"cache": 10**400}, "cache is 1000"),
        ({"cache": 1}, "the layers of step 0 are not of the same token"),
        ({"tokens": 36}, "the layers of step 0 are not of the same token"),
        ({"tokens": 0}, "tokens is 0"),
        ({"tokens": 33}, "tokens behind the last one are attended"),
        ({"lists": 0}, "lists is 0"),
        ({"lists": 2}, "the record at byte"),
        ({"whole": 1}, "whole is neither true nor false"),
        ({"bytes": {"score": 1}}, "bytes is not a table of score"),
        ({"bytes": dict.fromkeys(BYTES, -1)}, "bytes: score is -1"),
        ({"bytes": dict.fromkeys(BYTES, 10**400)}, "bytes: score is 1000"),
        ({"more": "x" * 5000}, "has a line without an end"),
    ],
)
def test_a_record_that_says_something_else_is_refused(tmp_path, changes, message):
    trace = made(layers=2, steps=2)
    trace.steps[0].layers[1].attended[:, -1] = 1 << 2  # the last of 35 tokens
    trace.steps[0].layers[1].completed[:, -1] = 0
    changed(tmp_path / "x", trace, 2, **changes)
    with pytest.raises(TraceError, match=message):
        attention_trace.load(tmp_path / "x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a trace of version 2"),
        (MAGIC.replace(b"2", b"1"), "not a trace of version 2"),
        (MAGIC, "the header has no end"),
        (MAGIC + b"{\n", "the header is not JSON"),
        (MAGIC + b"[" * 100000 + b"\n", "the header is not JSON"),
        (MAGIC + b"[]\n", "the header is not an object"),
        (MAGIC + b'{"model": "", "settings": {}, "masses": ["true_mass", "covered_mass"]}\n', "no step is in it"),
        (MAGIC + b'{"model": "", "settings": {}, "masses": ["true_mass", "covered_mass"]}\n[]\n', "is not an object"),
    ],
    ids=str,
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, data, message):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(TraceError, match=message):
        attention_trace.load(tmp_path / "x")


def test_values_that_are_no_shares_are_refused(tmp_path):
    for value in (np.nan, np.inf, -0.5, 1.5):
        trace = made(layers=2)
        trace.steps[0].layers[1].masses["estimated_mass"][0, 0] = value
        trace.save(tmp_path / "x")
        with pytest.raises(TraceError, match="estimated_mass has values that are no shares"):
            attention_trace.load(tmp_path / "x")
    trace = made()
    layer = trace.steps[0].layers[0]
    layer.completed[0, 0] = layer.attended[0, 0] = 1
    trace.save(tmp_path / "x")
    with pytest.raises(TraceError, match="stands in for tokens that are attended"):
        attention_trace.load(tmp_path / "x")


def test_a_file_that_is_too_large_is_neither_written_nor_read(tmp_path, monkeypatch):
    trace = made()
    trace.save(tmp_path / "x")
    monkeypatch.setattr(attention_trace, "MAX_BYTES", (tmp_path / "x").stat().st_size - 1)
    with pytest.raises(TraceError, match="more than"):
        attention_trace.load(tmp_path / "x")
    with pytest.raises(TraceError, match="take fewer tokens"):
        trace.save(tmp_path / "y")
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("text", ["word ", None])
def test_damaged_files_are_refused_or_still_traces(tmp_path, text):
    path, chance = tmp_path / "x", random.Random(7)
    made(2, 2, 20, steps=3, text=text).save(path)
    whole = path.read_bytes()
    refused = 0
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice((0, 9, 0x22, 0x2C, 0x39, 0x7F, 0xFF, chance.randrange(256)))
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            inspect_page.page(attention_trace.load(path))
        except TraceError:
            refused += 1
    assert 300 < refused < 1000
