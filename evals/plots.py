"""SVG pictures for the report. Their colours are the page's CSS variables, so that they follow its light or dark theme;
their text is text."""

from __future__ import annotations

import math
from html import escape

import numpy as np

WIDTH, HEIGHT = 760, 420
LEFT, TOP, BOTTOM = 62, 16, 48
POINTS_END, LINES_END = WIDTH - 110, WIDTH - 232  # what is to the right of it is for labels
LABEL_HEIGHT = 14
MANY_POINTS = 20  # of a scatter plot
DRAWN_POSITIONS = 400  # of a curve, at least: the picture has not many more pixels
CHARACTER = 6.4  # of an 11.5-pixel label, on average

# A hue for each kind of selector, not for each setting; a label names every mark besides.
HUES = {
    "dense": "ink",
    "locks": "blue",
    "oracle": "gray",
    "two_bit": "aqua",
    "shared_basis": "green",
    "quest": "red",
    "unique": "yellow",
    "compkv": "magenta",
    "rocketkv": "orange",
    "shadowkv": "violet",
    "recency": "gray",
    "random": "gray",
}
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2")


def colour(selector):
    return f"var(--{HUES.get(selector, 'ink')})"


class Axis:
    """Data to pixels. A logarithmic axis takes positive values only."""

    def __init__(self, values, begin, end, logarithmic=False, fixed=None):
        self.logarithmic = logarithmic
        low, high = fixed or (min(values), max(values))
        if logarithmic:
            low, high = math.log10(low), math.log10(high)
        spread = (high - low) or (1.0 if logarithmic else abs(high) or 1.0)
        margin = 0 if fixed else 0.5 * spread if low == high else 0.06 * spread
        self.low, self.high = low - margin, high + margin
        if self.low == self.high:
            self.high = self.low + spread
        self.begin, self.end = begin, end

    def __call__(self, value):
        value = math.log10(value) if self.logarithmic else value
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self):
        if self.logarithmic:
            found = []
            for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
                found = [
                    step * 10.0**power
                    for power in range(math.floor(self.low), math.ceil(self.high) + 1)
                    for step in steps
                    if self.low - 1e-9 <= math.log10(step * 10.0**power) <= self.high + 1e-9
                ]
                if len(found) >= 3:
                    break
            return found if len(found) >= 2 else _even_ticks(10**self.low, 10**self.high)
        return _even_ticks(self.low, self.high)


def _even_ticks(low, high):
    raw = (high - low) / 5
    base = 10 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10) if base * factor >= raw)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def short(value):
    """A tick's text."""
    if value != 0 and not 0.001 <= abs(value) < 100000:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.10g}" if abs(value) >= 1000 else f"{value:.4g}"


def scatter(points, x_title, y_title, log_y=False):
    """`points` are dicts: label, selector, x, y, low, high or None, and family or None. The x axis is logarithmic. A line joins
    the points of a family, whose name stands for theirs where there are many."""
    points = [point for point in points if point["x"] > 0 and (point["y"] > 0 or not log_y)]
    if not points:
        return ""
    ends = [v for p in points for v in (p["y"], p["low"], p["high"]) if v is not None and (v > 0 or not log_y)]
    x = Axis([point["x"] for point in points], LEFT + 6, POINTS_END, True)
    y = Axis(ends, HEIGHT - BOTTOM, TOP + 6, log_y)
    parts = _frame(x, y, x_title, y_title)
    lines = list(_family_lines(points, x, y))
    many = len(points) > MANY_POINTS
    named = {p.get("family"): p for p in sorted(points, key=lambda p: p["x"])}  # its last point
    placed = [(x(p["x"]) - 6, y(p["y"]) - 6, x(p["x"]) + 6, y(p["y"]) + 6) for p in points]
    marks, labels = [], []
    for point in sorted(points, key=lambda point: (y(point["y"]), x(point["x"]))):
        px, py, ink = x(point["x"]), y(point["y"]), colour(point["selector"])
        interval = ""
        if point["low"] is not None and (point["low"] > 0 or not log_y):
            marks.append(
                _line(px, y(point["low"]), px, y(point["high"]), f'stroke="{ink}" stroke-width="1.5" opacity="0.6"')
            )
            interval = f", 95 % {short(point['low'])} to {short(point['high'])}"
        title = escape(f"{point['label']}: {y_title} {point['y']:.4g}{interval}, {x_title} {point['x']:.3g}")
        marks.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5" fill="{ink}" stroke="var(--page)" stroke-width="1.5">'
            f"<title>{title}</title></circle>"
        )
        family = point.get("family") if many else None
        if not family or named[family] is point:
            labels.append(_label(family or point["label"], px, py, placed))
    return svg(parts + lines + marks + labels, f"Scatter plot: {y_title} against {x_title}")


def _family_lines(points, x, y):
    for family in dict.fromkeys(p["family"] for p in points if p.get("family")):
        members = sorted((p for p in points if p.get("family") == family), key=lambda p: p["x"])
        path = " ".join(f"{x(p['x']):.1f},{y(p['y']):.1f}" for p in members)
        ink = colour(members[0]["selector"])
        yield f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="1.5" opacity="0.5"/>'


def _label(text, px, py, placed):
    """Beside its mark where nothing else is; lower or higher where there is."""
    width = CHARACTER * len(text)
    tries = [0, *(sign * step * LABEL_HEIGHT / 2 for step in range(1, 40) for sign in (1, -1))]
    sides = [px + 9] if px + 9 + width <= WIDTH else []
    if px - 9 - width >= LEFT:
        sides.append(px - 9 - width)
    sides = sides or [WIDTH - width]
    for offset in tries:
        for left in sides:
            box = (left, py + offset - LABEL_HEIGHT / 2, left + width, py + offset + LABEL_HEIGHT / 2)
            inside = box[1] >= 0 and box[3] <= HEIGHT - BOTTOM
            if inside and not any(_overlap(box, other) for other in placed):
                placed.append(box)
                far = abs(offset) > LABEL_HEIGHT / 2
                near = left if left > px else left + width
                leader = _line(px, py, near, py + offset, 'class="leader"') if far else ""
                return leader + text_at(left, py + offset + 4, text, "label")
    return ""


def _overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def curves(lines, x_title, y_title, log_y=True):
    """`lines` are dicts: label, selector, values (one for each position). On a logarithmic y axis what is 0 is not drawn."""
    if log_y:
        lines = [line for line in lines if any(value > 0 for value in line["values"])]
    if not lines:
        return ""
    longest = max(len(line["values"]) for line in lines)
    window = max(1, longest // 16)
    smooth = [(line, _smooth(line["values"], window)) for line in lines]
    drawn = [value for _, values in smooth for value in values if value > 0 or not log_y]
    x = Axis([], LEFT + 6, LINES_END, fixed=(1, max(longest, 2)))
    y = Axis(drawn, HEIGHT - BOTTOM, TOP + 6, log_y)
    parts = _frame(x, y, x_title, y_title)
    used, ends = {}, []
    for line, values in smooth:
        nth = used[HUES.get(line["selector"])] = used.get(HUES.get(line["selector"]), -1) + 1
        first = 1 + (len(line["values"]) - len(values)) / 2
        shown = [(i, value) for i, value in enumerate(values) if value > 0 or not log_y]
        shown = shown[:: max(1, len(shown) // DRAWN_POSITIONS)]
        path = " ".join(f"{x(first + i):.1f},{y(value):.1f}" for i, value in shown)
        dash = DASHES[nth % len(DASHES)]
        ink = colour(line["selector"])
        style = f'fill="none" stroke="{ink}" stroke-width="2" stroke-linejoin="round"'
        style += f' stroke-dasharray="{dash}"' if dash else ""
        mean = float(np.mean(line["values"]))
        parts.append(f'<polyline points="{path}" {style}><title>{escape(line["label"])}: mean {mean:.4g}</title></polyline>')
        ends.append([y(shown[-1][1]), x(first + len(values) - 1), line["label"], ink, dash])
    places = _spread([end[0] for end in ends], TOP + 8, HEIGHT - BOTTOM - 4)
    column = LINES_END + 12
    for place, (py, px, label, ink, dash) in zip(places, ends):
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(_line(px + 1, py, column, place, 'class="leader"'))
        parts.append(_line(column, place, column + 16, place, f'stroke="{ink}" stroke-width="2"{dashes}'))
        parts.append(text_at(column + 20, place + 4, label, "label"))
    return svg(parts, f"Curves: {y_title} by {x_title}")


def _smooth(values, window):
    return np.convolve(values, np.ones(window) / window, "valid").tolist()


def _spread(places, low, high):
    """The places, moved apart as little as it takes, within their order."""
    order = np.argsort(places, kind="stable")
    moved = np.array(places, float)
    gap = min(LABEL_HEIGHT, (high - low) / max(len(places) - 1, 1))
    for i, index in enumerate(order):
        floor = low if i == 0 else moved[order[i - 1]] + gap
        moved[index] = max(moved[index], floor)
    for i, index in reversed(list(enumerate(order))):
        ceiling = high if i == len(order) - 1 else moved[order[i + 1]] - gap
        moved[index] = min(moved[index], ceiling)
    return moved


def heat_map(grid):
    """Scores of one method, from 0 to 1: length to the right, depth downwards."""
    cell_width, cell_height, left, top = 56, 24, 52, 24
    rows, columns = grid.scores.shape
    # Titles are bold, and so a little wider than labels.
    width = max(left + cell_width * columns, left + 1.15 * CHARACTER * len(grid.method)) + 8
    height = top + cell_height * rows + 34
    parts = [text_at(left, 14, grid.method, "title")]
    for i, depth in enumerate(grid.depths):
        parts.append(text_at(left - 6, top + cell_height * (i + 0.5) + 4, f"{depth:.0%}", "tick", "end"))
        for j, length in enumerate(grid.lengths):
            score = grid.scores[i, j]
            place = f'x="{left + cell_width * j + 1}" y="{top + cell_height * i + 1}"'
            size = f'width="{cell_width - 2}" height="{cell_height - 2}" rx="2"'
            if np.isnan(score):
                parts.append(f'<rect {place} {size} fill="none" stroke="var(--line)" stroke-dasharray="2 2"/>')
                continue
            share = min(max(score, 0), 1)
            text = escape(f"{grid.method}, {length:,} tokens, depth {depth:.0%}: {score:.3g}")
            parts.append(
                f'<rect {place} {size} fill="color-mix(in srgb, var(--blue) {100 * share:.0f}%, var(--empty))">'
                f"<title>{text}</title></rect>"
            )
            middle = left + cell_width * (j + 0.5), top + cell_height * (i + 0.5) + 4
            parts.append(text_at(*middle, f"{score:.3g}", "on-cell" if share > 0.5 else "in-cell", "middle"))
    for j, length in enumerate(grid.lengths):
        parts.append(text_at(left + cell_width * (j + 0.5), top + cell_height * rows + 14, f"{length:,}", "tick", "middle"))
    parts.append(text_at(left + cell_width * columns / 2, height - 4, "tokens", "axis", "middle"))
    return svg(parts, f"Scores of {grid.method} by length and depth", width, height)


def _frame(x, y, x_title, y_title):
    parts = []
    for tick in y.ticks():
        parts.append(_line(LEFT, y(tick), x.end + 6, y(tick), 'class="grid"'))
        parts.append(text_at(LEFT - 6, y(tick) + 4, short(tick), "tick", "end"))
    for tick in x.ticks():
        parts.append(_line(x(tick), HEIGHT - BOTTOM, x(tick), HEIGHT - BOTTOM + 4, 'class="rule"'))
        parts.append(text_at(x(tick), HEIGHT - BOTTOM + 17, short(tick), "tick", "middle"))
    parts.append(_line(LEFT, HEIGHT - BOTTOM, x.end + 6, HEIGHT - BOTTOM, 'class="rule"'))
    parts.append(text_at((LEFT + x.end) / 2, HEIGHT - 10, x_title, "axis", "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="axis" text-anchor="middle" transform="translate(14 {middle:.0f}) rotate(-90)">'
        f"{escape(y_title)}</text>"
    )
    return parts


def _line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def text_at(x, y, text, kind, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def svg(parts, description, width=WIDTH, height=HEIGHT):
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" aria-label="{escape(description)}">'
    return head + "".join(parts) + "</svg>"
