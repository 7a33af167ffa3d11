"""A trace as one HTML file."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np

MAX_BYTES = 64 << 20  # of steps: what a browser still opens
LAYER_BYTES = 256  # of a layer's own in the page, beside its arrays
TEMPLATE = Path(__file__).with_suffix(".html")


def facts(trace):
    """What the steps did, in the mean."""
    first, last = trace.steps[0], trace.steps[-1]
    lists = max(layer.lists for layer in first.layers)
    text = f"{trace.model}: " if trace.model else ""
    text += f"{len(first.layers)} layers, {lists} lists of heads, "
    if len(trace.steps) == 1:
        text += f"{first.tokens:,} tokens in {first.pages} pages. "
    else:
        text += f"{len(trace.steps)} steps, of {first.tokens:,} to {last.tokens:,} tokens. In the mean "
    means = {name: np.mean([_share(step, name) for step in trace.steps]) for name in trace.masses}
    text += f"{np.mean([_attended(step) for step in trace.steps]):,.0f} tokens attended, with "
    text += f"{100 * means['covered_mass']:.1f} % of the true mass; "
    if "completed_mass" in means:
        text += f"{100 * means['completed_mass']:.1f} % of the mass given to stand-ins; "
    if "estimated_mass" in trace.masses:
        text += f"{100 * np.mean([_misjudged(step) for step in trace.steps]):.1f} % of the mass estimated to be elsewhere; "
    read = sum(step.bytes(name) for step in trace.steps for name in ("score", "attend", "complete"))
    dense = sum(step.bytes("dense") for step in trace.steps)
    text += f"{100 * read / max(dense, 1):.1f} % of the bytes of dense attention read. "
    if trace.left_out:
        text += f"{trace.left_out} steps without all their layers are left out. "
    return text + ", ".join(f"{key} {value}" for key, value in trace.settings.items())


def page(trace):
    steps, size = [], 0
    for step in trace.steps:
        arrays = [_arrays(trace.masses, layer) for layer in step.layers]
        size += sum(len(array) + LAYER_BYTES for array in arrays)
        if steps and size > MAX_BYTES:
            break
        steps.append(_step(step, arrays))
    text = facts(trace)
    if len(steps) < len(trace.steps):
        text += f". Shown are the first {len(steps)} steps, which is as much as a browser opens"
    sequences = len({(step.cache, step.sequence) for step in trace.steps})
    data = {"facts": text, "tokens": trace.tokens, "masses": trace.masses, "sequences": sequences, "steps": steps}
    # Nothing in a text may end the script that it stands in.
    return TEMPLATE.read_text(encoding="utf-8").replace("@DATA@", json.dumps(data).replace("<", "\\u003c"))


def _step(step, arrays):
    layers = [
        {"layer": layer.layer, "lists": layer.lists, "whole": layer.whole, "arrays": base64.b64encode(array).decode()}
        | {"covered": round(float(_mass(layer, "covered_mass")), 4)}
        for layer, array in zip(step.layers, arrays)
    ]
    read = {name: step.bytes(name) for name in step.layers[0].bytes}
    return {"tokens": step.tokens, "sequence": step.sequence, "bytes": read, "layers": layers}


def _arrays(masses, layer):
    arrays = [np.minimum(layer.masses[name], 1).astype("<f2") for name in masses]
    return b"".join(array.tobytes() for array in [*arrays, layer.attended.astype("<u2"), layer.completed.astype("<u2")])


def _mass(layer, name):
    return layer.masses[name].astype(np.float32).sum(-1).mean()


def _share(step, name):
    return np.mean([_mass(layer, name) for layer in step.layers])


def _misjudged(step):
    """Half of the sum of differences: the share that would have to move."""
    differences = []
    for layer in step.layers:
        estimated, true = (layer.masses[name].astype(np.float32) for name in ("estimated_mass", "true_mass"))
        differences.append(np.abs(estimated - true).sum(-1).mean())
    return np.mean(differences) / 2


def _attended(step):
    """Tokens, in the mean over layers and lists."""
    bits = [np.unpackbits(np.ascontiguousarray(layer.attended).view(np.uint8)).sum() / layer.lists for layer in step.layers]
    return np.mean(bits)
