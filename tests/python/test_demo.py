"""The demo from end to end, on a shorter document."""

import json
import subprocess
import sys

from plugin_path import ROOT


def test_the_demo_ends_with_its_table_and_json(plugin, tmp_path):
    command = [
        sys.executable,
        str(ROOT / "python" / "demo.py"),
        "--plugin",
        str(plugin),
        "--out",
        str(tmp_path),
        "--tokens",
        "2048",
        "--generate",
        "16",
        str(ROOT / "docs" / "ALGORITHM.md"),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    for piece in (
        "reading the document: 2,048 of 2,048 tokens",
        "prompt, tokens/s",
        "decode, tokens/s",
        "estimated coverage",
    ):
        assert piece in run.stdout
    found = json.loads((tmp_path / "demo.json").read_text())
    assert found["context_tokens"] == 2048 and found["layers"] == 30
    assert 0 < found["attended_share"] < 0.3 and 0.5 < found["coverage"] < 1
    assert found["decode_speedup"] > 0 and found["prompt_speedup"] > 0
    assert not list(tmp_path.glob("*.npy"))
