"""How a report looks: tables and figures in HTML and Markdown, and the page around them."""

from __future__ import annotations

import re
from html import escape


def figures(pairs):
    parts = [f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for caption, svg in pairs if svg]
    return '<div class="figures">' + "".join(parts) + "</div>" if parts else ""


def folded(title, body):
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def markdown_table(rows, numbers=True):
    cells = [[text.replace("|", "\\|") for text in row] for row in rows]
    rule = ["---", *("--:" if numbers else "---" for _ in rows[0][1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in [cells[0], rule, *cells[1:]])


def html_table(rows, numbers=True):
    head = "".join(f"<th>{escape(text)}</th>" for text in rows[0])
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>" + "".join(f"<td>{escape(text)}</td>" for text in row[1:]) + "</tr>"
        for row in rows[1:]
    )
    kind = "numbers" if numbers else "facts"
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


COLOURS = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #0b0b0b; --soft: #52514e; --line: #dddcd8; --empty: #eeeeea;
  --blue: #2a78d6; --aqua: #1baf7a; --yellow: #c98500; --green: #008300; --violet: #4a3aa7; --red: #e34948;
  --magenta: #d55181; --orange: #eb6834; --gray: #84827d; }
@media (prefers-color-scheme: dark) { :root { --page: #1a1a19; --ink: #ffffff; --soft: #c3c2b7; --line: #3a3a37;
  --empty: #2a2a28; --blue: #3987e5; --aqua: #199e70; --green: #2fa32f; --violet: #9085e9; --red: #e66767;
  --magenta: #d55181; --orange: #d95926; --gray: #98968f; } }
"""
LAYOUT = """
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1560px;
  padding: 24px; }
h1 { font-size: 22px; margin: 0 0 8px; } h2 { font-size: 17px; margin: 36px 0 8px; }
p { color: var(--soft); margin: 4px 0 10px; max-width: 75ch; }
p.note { border-left: 4px solid var(--orange); color: var(--ink); padding: 4px 10px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13.5px; margin: 6px 0; }
th, td { border-bottom: 1px solid var(--line); padding: 4px 12px 4px 0; text-align: left; vertical-align: top; }
th { font-weight: 600; } tbody th, .facts th { font-weight: 400; white-space: nowrap; }
thead th { color: var(--soft); vertical-align: bottom; }
table.numbers td { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
table.numbers thead th + th { max-width: 7em; padding-left: 8px; text-align: right; }
code { font-size: 13px; overflow-wrap: anywhere; }
.figures, .grids { display: flex; flex-wrap: wrap; gap: 16px; margin-top: 12px; }
figure { flex: 0 1 740px; margin: 0; } figcaption { color: var(--soft); font-size: 13px; }
svg { max-width: 100%; height: auto; }
"""
PICTURES = """
svg text { fill: var(--ink); font: 11.5px system-ui, sans-serif; } svg .tick, svg .axis { fill: var(--soft); }
svg .title { font-weight: 600; } svg .on-cell { fill: #ffffff; } svg .grid { stroke: var(--line); }
svg .rule { stroke: var(--soft); } svg .leader { stroke: var(--gray); stroke-width: 0.75; opacity: 0.7; }
"""
STYLE = COLOURS + LAYOUT + PICTURES


def picture_file(svg):
    """A picture without a page around it."""
    style = f"<style>{COLOURS}svg {{ background: var(--page); }}{PICTURES}</style>"
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", ">" + style, 1) + "\n"


PAGE = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>{title}</title><style>"
    + re.sub(r"([{}])", r"\1\1", STYLE)
    + "</style></head><body>\n<h1>{title}</h1>\n{body}\n</body></html>\n"
)
