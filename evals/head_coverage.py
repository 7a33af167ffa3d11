"""How much of the attention mass each layer and KV head attended, by a method's own estimate: means, a table, a map."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np

from plots import CHARACTER, svg, text_at

CELL_WIDTH, CELL_HEIGHT, LEFT, TOP = 18, 18, 52, 24
MOST_WIDTH = 1200  # of many layers: cells are narrower then
LOW = 0.5  # a share so low says that half of the attention is missed


@dataclass
class HeadCoverage:
    method: str
    shares: np.ndarray  # [layers, kv_heads], means over results; NaN of a layer that the plug-in left to llama.cpp


def by_method(results, methods):
    """For the methods that estimate it."""
    found = []
    for method in methods:
        own = [row for row in results if row["method"] == method and row.get("coverage_by_head")]
        tables = [_table(row["coverage_by_head"]) for row in own]
        if tables and not np.isnan(tables[0]).all():
            found.append(HeadCoverage(method, np.mean(tables, axis=0)))
    return found


def _table(layers):
    heads = max(map(len, layers), default=0)
    return np.array([[*layer, *[np.nan] * (heads - len(layer))] for layer in layers], float)


def table(coverages):
    rows = [["method", "mean, %", "lowest head, %", "where", "lowest layer, %", "where", f"heads under {100 * LOW:.0f} %"]]
    for coverage in coverages:
        shares = coverage.shares
        layer, head = np.unravel_index(np.nanargmin(shares), shares.shape)
        of_layers = np.array([layer[~np.isnan(layer)].mean() if not np.isnan(layer).all() else np.nan for layer in shares])
        lowest = int(np.nanargmin(of_layers))
        rows.append(
            [
                coverage.method,
                f"{100 * np.nanmean(shares):.1f}",
                f"{100 * shares[layer, head]:.1f}",
                f"layer {layer}, head {head}",
                f"{100 * of_layers[lowest]:.1f}",
                f"layer {lowest}",
                f"{(shares < LOW).sum()} of {(~np.isnan(shares)).sum()}",
            ]
        )
    return rows


def picture(coverage, low):
    """Layers to the right, KV heads downwards; the palest cell has the share `low`, the darkest 1."""
    layers, heads = coverage.shares.shape
    cell = min(CELL_WIDTH, MOST_WIDTH / layers)
    # Titles are bold, and so a little wider than labels.
    width = max(LEFT + cell * layers, LEFT + 1.15 * CHARACTER * len(coverage.method)) + 8
    height = TOP + CELL_HEIGHT * heads + 34
    parts = [text_at(LEFT, 14, coverage.method, "title")]
    for head in range(heads):
        parts.append(text_at(LEFT - 6, TOP + CELL_HEIGHT * (head + 0.5) + 4, f"head {head}", "tick", "end"))
        for layer in range(layers):
            place = f'x="{LEFT + cell * layer:.1f}" y="{TOP + CELL_HEIGHT * head + 1}"'
            size = f'width="{0.94 * cell:.1f}" height="{CELL_HEIGHT - 1}"'
            share = coverage.shares[layer, head]
            if np.isnan(share):
                parts.append(f'<rect {place} {size} fill="none" stroke="var(--line)"/>')
                continue
            depth = 100 * min(max((share - low) / max(1 - low, 1e-9), 0), 1)
            title = escape(f"{coverage.method}, layer {layer}, head {head}: {share:.1%}")
            parts.append(
                f'<rect {place} {size} fill="color-mix(in srgb, var(--blue) {depth:.0f}%, var(--empty))">'
                f"<title>{title}</title></rect>"
            )
    step = 5 if layers <= 60 else 10
    for layer in range(0, layers, step):
        x = LEFT + cell * (layer + 0.5)
        parts.append(text_at(x, TOP + CELL_HEIGHT * heads + 14, str(layer), "tick", "middle"))
    parts.append(text_at(LEFT + cell * layers / 2, height - 4, "layer", "axis", "middle"))
    return svg(parts, f"Estimated coverage of {coverage.method} by layer and KV head", width, height)


def scale(coverages):
    """Where the palest colour is: the lowest share of all, rounded down to a tenth."""
    lowest = min(float(np.nanmin(coverage.shares)) for coverage in coverages)
    return np.floor(10 * lowest) / 10
