"""What one of these programs finds out: a line for each, and in the end what failed."""

import sys
from pathlib import Path

FAILED: list[str] = []


def check(name: str, fits: bool, figures: str = "") -> None:
    print(f"{Path(sys.argv[0]).stem}: {'ok  ' if fits else 'FAIL'} {name}{': ' if figures else ''}{figures}", flush=True)
    if not fits:
        FAILED.append(name)
