#!/usr/bin/env python3
"""llama.cpp with LOCKS against the same llama.cpp as it is, in milliseconds a token.

Flash attention is on, which is the host's default. Both run at the same time, in a process each, and take turns: a
slow moment of the machine meets both. Up to 7,500 tokens it is the real model on a document that it has read; at
32,768 and 65,536 a model of the 1B class with random weights on a cache that was filled without reading. Results go
to the table below and, as entries named llamacpp.*, into a JSON list beside those of `locks bench`.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

import document  # noqa: E402
import filled_cache  # noqa: E402
import locks_llamacpp  # noqa: E402
import make_gguf  # noqa: E402
from llama_host import HostError, real_model_path  # noqa: E402
from plugin_path import find_plugin  # noqa: E402
from progress import Progress  # noqa: E402
from session import Session, SessionError  # noqa: E402

REAL_LENGTHS = (7500, 4000, 2000, 1000, 500, 100)
PAGE_LENGTHS = (7500, 1024)  # below 1,024 nothing is summarised
PAGE_STEPS = 120
LONG_LENGTHS = (65536, 32768)
SEED_TOKENS = 64  # read by the generated model; the filled cache repeats their rows
LONG_MEMORY = 11 << 30  # two caches of 64K, two models, and one saved cache at a time


def read_document(state, path, length, threads):
    """Reads `length` tokens; returns the seconds and the cache, which stays in the context as well."""
    tokens, _ = document.load(state.model, path, length, length)
    context = state.context(context_tokens=length + 128, num_threads=threads)
    progress = Progress("reading the document", length)
    started = time.perf_counter()
    context.read(tokens, on_chunk=lambda done, seconds: progress.update(done))
    return time.perf_counter() - started, context.save()


def take_over(state, cache):
    state.context().restore(cache)


def fill(state, length, threads):
    """A cache of `length` tokens that nobody read."""
    context = state.context(context_tokens=length + 128, num_threads=threads)
    context.read(np.random.default_rng(1).integers(0, state.model.vocabulary_size, SEED_TOKENS))
    context.restore(filled_cache.extend(context.save(), length))


def steps(state, length, count):
    """Seconds of single-token steps behind the first `length` tokens; whatever lay behind them is gone."""
    context = state.context()
    context.remove(length)
    seconds = []
    for i in range(count):
        started = time.perf_counter()
        context.step(1 + i, length + i)
        seconds.append(time.perf_counter() - started)
    return seconds


def reset(state):
    locks_llamacpp.reset_statistics()


def statistics_of(state):
    return locks_llamacpp.statistics()


def steps_that_fill_a_page(state, length, count):
    """Of `count` steps behind `length` tokens, those that complete a page: (seconds, seconds spent summarising) of each."""
    context = state.context()
    context.remove(length)
    before = locks_llamacpp.statistics()
    found = []
    for i in range(count):
        started = time.perf_counter()
        context.step(1 + i, length + i)
        seconds = time.perf_counter() - started
        after = locks_llamacpp.statistics()
        # A page in every layer; the first step behind a cut may summarise all of them.
        if after["summarized_pages"] - before["summarized_pages"] == after["layers"]:
            found.append((seconds, after["summarize_seconds"] - before["summarize_seconds"]))
        before = after
    return found


def bytes_per_step(state):
    """What attention reads in a step, by the plug-in's count: with LOCKS, and densely."""
    counted = locks_llamacpp.statistics()
    read = counted["score_bytes"] + counted["attend_bytes"] + counted["complete_bytes"]
    return read / max(counted["decode_steps"], 1), counted["dense_bytes"] / max(counted["decode_steps"], 1)


class Results:
    def __init__(self, bandwidth):
        self._bandwidth = bandwidth
        self.entries = []
        print(f"{'':26} {'stock ms':>10} {'LOCKS ms':>10} {'speed-up':>9} {'attention MB':>13} {'of dense':>9}")

    def add(self, name, stock, locks, speedup, attention_bytes=None, dense_bytes=None, weight_bytes=0):
        moved = attention_bytes + weight_bytes if attention_bytes is not None else None
        share = moved / locks / self._bandwidth if moved and self._bandwidth else None
        self.entries.append(
            {
                "name": name,
                "value": 1e3 * locks,
                "unit": "ms/token",
                "bytes": moved,
                "bandwidth_share": share,
                "speedup": speedup,
                "stock": 1e3 * stock,
                "attention_bytes": attention_bytes,
                "dense_bytes": dense_bytes,
            }
        )
        read = f"{attention_bytes / 1e6:13.1f} {attention_bytes / dense_bytes:9.1%}" if attention_bytes else ""
        print(f"{name:26} {1e3 * stock:10.2f} {1e3 * locks:10.2f} {speedup:8.2f}x {read}", flush=True)

    def add_share(self, name, part, whole, of, **more):
        entry = {"name": name, "value": 100 * part / whole, "unit": f"% of {of}", "bytes": None, "bandwidth_share": None}
        self.entries.append({**entry, **more})
        print(f"{name:32} {part / whole:6.2%} of {of}", flush=True)


def compare(results, stock, locks, name, length, rounds, count, weight_bytes):
    """Blocks of steps in turn. The first block of each is not counted: it makes summaries and warms up."""
    stock.run(steps, length, 2)
    locks.run(steps, length, 2)
    locks.run(reset)
    pairs = [(stock.run(steps, length, count), locks.run(steps, length, count)) for _ in range(rounds)]
    read, dense = locks.run(bytes_per_step)
    medians = [(statistics.median(a), statistics.median(b)) for a, b in pairs]
    results.add(
        f"{name}.{length}",
        statistics.median(a for a, _ in medians),
        statistics.median(b for _, b in medians),
        statistics.median(a / b for a, b in medians),
        read,
        dense,
        weight_bytes,
    )


def run_real(results, options, plugin, settings):
    length = REAL_LENGTHS[0]
    weights = os.path.getsize(real_model_path())
    with Session() as stock, Session(plugin, settings) as locks:
        stock_seconds, cache = stock.run(read_document, options.document, length, options.threads)
        locks_seconds, _ = locks.run(read_document, options.document, length, options.threads)
        counted = locks.run(statistics_of)
        results.add(
            f"llamacpp.prefill.{length}", stock_seconds / length, locks_seconds / length, stock_seconds / locks_seconds
        )
        add_prompt_shares(results, length, stock_seconds, locks_seconds, counted)
        locks.run(take_over, cache)
        for length in REAL_LENGTHS:
            count = 8 if length > 2000 else 16
            compare(results, stock, locks, "llamacpp.decode", length, options.rounds, count, weights)
        locks.run(take_over, cache)
        for length in PAGE_LENGTHS:
            add_page_share(results, locks, length, options.rounds)


def add_prompt_shares(results, length, stock_seconds, seconds, counted):
    """Where the time of a prompt goes. What is neither attention nor summaries is the host's, with LOCKS as without."""
    attention, summaries = counted["prefill_seconds"], counted["summarize_seconds"]
    host = seconds - attention - summaries
    results.add_share(f"llamacpp.summarize.prompt.{length}", summaries, seconds, "the prompt's time", seconds=summaries)
    results.add_share(
        f"llamacpp.attention.prompt.{length}",
        attention,
        seconds,
        "the prompt's time",
        seconds=attention,
        prompt_seconds=seconds,
        stock_prompt_seconds=stock_seconds,
        speedup_ceiling=stock_seconds / host,
    )
    print(
        f"prompt: {stock_seconds:.1f} s stock; with LOCKS {seconds:.1f} s = {attention:.1f} attention + {summaries:.2f} "
        f"summaries + {host:.1f} the host's own, so at most {stock_seconds / host:.2f}x with attention for nothing",
        flush=True,
    )


def add_page_share(results, locks, length, rounds):
    """How much of a step in which a page fills its summary takes: medians."""
    found = [pair for _ in range(rounds) for pair in locks.run(steps_that_fill_a_page, length, PAGE_STEPS)]
    if not found:
        print(f"left out: with these settings no page is summarised at {length:,} tokens")
        return
    share = statistics.median(summaries / seconds for seconds, summaries in found)
    seconds = statistics.median(summaries for _, summaries in found)
    results.add_share(f"llamacpp.summarize.page.{length}", share, 1, "the step that fills a page", seconds=seconds)


def available_memory():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def run_long(results, options, plugin, settings):
    if available_memory() < LONG_MEMORY:
        print(f"left out: {LONG_LENGTHS[0]:,} and {LONG_LENGTHS[1]:,} tokens need {LONG_MEMORY >> 30} GiB of free memory")
        return
    path = options.json.parent / "random-1b.gguf"
    make_gguf.write(path)
    try:
        with Session(model_path=path) as stock, Session(plugin, settings, model_path=path) as locks:
            for session in (stock, locks):
                session.run(fill, LONG_LENGTHS[0], options.threads)
            for length in LONG_LENGTHS:
                compare(results, stock, locks, "llamacpp.decode", length, min(options.rounds, 3), 3, os.path.getsize(path))
    finally:
        path.unlink()


def read_entries(path):
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=ROOT / "out" / "bench.json", help="the list to write the entries into")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: the cores there are")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default 5)")
    parser.add_argument("--document", type=Path, help="a text of at least 7,500 tokens; by default the project's own")
    parser.add_argument("--only", choices=["real", "long"], help="the real model alone, or the long contexts alone")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of docs/LLAMACPP.md")
    parser.add_argument("--plugin", type=Path, help="the plug-in to load (default: the one that make built)")
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1 or any("=" not in setting for setting in options.set):
        parser.error("--rounds and --threads take a number from 1 on, --set takes NAME=VALUE")
    plugin = options.plugin or find_plugin()
    settings = {"report": 0, **dict(setting.split("=", 1) for setting in options.set)}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    others = [entry for entry in read_entries(options.json) if not entry["name"].startswith("llamacpp.")]
    bandwidth = next((1e9 * entry["value"] for entry in others if entry["name"] == "cpu.read_bandwidth"), None)
    results = Results(bandwidth)
    if options.only != "long":
        run_real(results, options, plugin, settings)
    if options.only != "real":
        run_long(results, options, plugin, settings)
    options.json.write_text(json.dumps(others + results.entries, indent=2) + "\n")
    print(f"wrote {options.json}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (document.DocumentError, HostError, SessionError, FileNotFoundError, json.JSONDecodeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(1)
