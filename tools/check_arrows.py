#!/usr/bin/env python3
"""Checks the rules of the tree that no compiler checks. Prints one line per fault; exits 1 if there is any.

Arrows:  include <- cpu, page_summary <- stage <- decode <- {selectors, hosts, cli, python, bench, tests}. A stage includes
         only its own private headers; cpu, cuda and page_summary know no stage; ggml is known to hosts/llamacpp alone, CUDA to
         .cu, .cuh and src/cuda.
Flags:   no -march and no -m<instruction set>: the choice of instructions is made at run time; but for the emulated GPU.
Sizes:   a hand-written source is at most 30 KB, their average under 8 KB.
Paths:   no absolute path of a machine.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

STAGES = {"summarize", "score", "select", "attend"}
# What a folder of src/ may include privately, itself aside.
MAY_INCLUDE = {
    "cpu": set(),
    "page_summary": {"cpu"},
    "cuda": {"cpu", "page_summary"},
    **{stage: {"cpu", "cuda", "page_summary"} for stage in STAGES},
    "decode": {"cpu", "cuda", "page_summary"},
    "io": set(),
    "selectors": {"cpu", "cuda", "page_summary", "decode"},
}
SOURCES = {".h", ".cc", ".c", ".cu", ".cuh", ".py", ".cmake", ".sh"}
MAX_BYTES = 30 * 1024
MAX_AVERAGE_BYTES = 8 * 1024

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
EMULATED_GPU = "tests/cuda/emulated"
FLAG = re.compile(r"""(?<![\w-])-(march|mtune|mcpu|msse|mavx|mfma|mf16c|mbmi|mamx)[\w.=-]*""")
MACHINE_PATH = re.compile(r"(?<![\w./~$}-])/(home|work|root|Users|tmp|mnt|data|opt)/[\w.-]+")


def tracked_files(root: Path) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, text=True).stdout
    return [Path(name) for name in names.split("\0") if name and (root / name).is_file()]


def include_faults(path: Path, text: str) -> Iterator[str]:
    parts = path.parts
    folder = parts[1] if parts[0] == "src" and len(parts) > 2 else None
    for header in INCLUDE.findall(text):
        first = header.split("/")[0]
        if first.startswith("ggml") and parts[:2] != ("hosts", "llamacpp") and parts[:2] != ("tests", "hosts"):
            yield f"includes {header}: only hosts/llamacpp and its tests know ggml"
        if re.match(r"(cuda|cub|thrust|cooperative_groups|nv/)", header) and not header.startswith("cuda/"):
            if path.suffix not in {".cu", ".cuh"} and folder != "cuda" and parts[:2] != ("tests", "cuda"):
                yield f"includes {header}: only .cu, .cuh, src/cuda and its tests include CUDA headers"
        if parts[0] == "include" and first in MAY_INCLUDE:
            yield f"includes {header}: a public header includes public headers only"
        if folder in MAY_INCLUDE and first in MAY_INCLUDE and first not in MAY_INCLUDE[folder] | {folder}:
            yield f"includes {header}: {folder} may include of src/ only {', '.join(sorted(MAY_INCLUDE[folder] | {folder}))}"
        stage_header = header.removeprefix("locks/").removesuffix(".h")
        if folder in {"cpu", "page_summary"} and stage_header in STAGES | {"decode"}:
            yield f"includes {header}: {folder} knows no stage"
        if parts[0] in {"cli", "hosts", "python"} and first in STAGES | {"decode"}:
            yield f"includes {header}: {parts[0]} uses the public headers"


def text_faults(path: Path, text: str) -> Iterator[str]:
    is_code = path.suffix in SOURCES or path.name in {"CMakeLists.txt", "CMakePresets.json", "Makefile", "run"}
    for number, line in enumerate(text.splitlines(), 1):
        flag = FLAG.search(line)
        if is_code and flag and path.name != Path(__file__).name and not path.is_relative_to(EMULATED_GPU):
            yield f"line {number}: {flag[0]}: instructions are chosen at run time, not by flags"
        machine_path = MACHINE_PATH.search(line)
        if machine_path:
            yield f"line {number}: {machine_path[0]} is a path of one machine"


def size_faults(sizes: dict[Path, int]) -> Iterator[str]:
    for path, size in sizes.items():
        if size > MAX_BYTES:
            yield f"{path}: {size} bytes; at most {MAX_BYTES}"
    average = sum(sizes.values()) // max(1, len(sizes))
    if average >= MAX_AVERAGE_BYTES:
        yield f"sources average {average} bytes; under {MAX_AVERAGE_BYTES} is the rule"


def check_tree(root: Path) -> list[str]:
    faults = []
    sizes = {}
    for path in tracked_files(root):
        data = (root / path).read_bytes()
        if b"\0" in data:
            continue
        text = data.decode("utf-8", errors="replace")
        if path.suffix in SOURCES:
            sizes[path] = len(data)
        found = [*text_faults(path, text)]
        if path.suffix in {".h", ".cc", ".c", ".cu", ".cuh"}:
            found += include_faults(path, text)
        faults += [f"{path}: {fault}" for fault in found]
    return faults + [*size_faults(sizes)]


if __name__ == "__main__":
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    all_faults = check_tree(root)
    print("\n".join(all_faults) or "the tree keeps its rules")
    sys.exit(1 if all_faults else 0)
