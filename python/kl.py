"""How far sparse attention moves a model's next-token distribution: teacher-forced KL(dense || sparse) on a text of
yours, for settings of yours, or for LOCKS and its rivals at one budget.

python python/kl.py [DOCUMENT] [--set budget_tokens=256 ... | --selectors 256]
"""

import argparse
import sys
from pathlib import Path

import numpy as np

import document
from llama_host import HostError
from plugin_path import find_plugin
from session import Session

SINK_AND_RECENT_TOKENS = 88  # a page of 16, and 64 to 79 recent ones: 72 on average


def with_selected(tokens, **settings):
    """Settings that select about this many tokens beside the sink and the recent window."""
    return {"budget_tokens": tokens + SINK_AND_RECENT_TOKENS, **settings}


PLAIN = {"part_tokens": 16, "completion": 0}  # whole pages, nothing completed
RIVALS = ("quest", "unique", "compkv", "rocketkv", "shadowkv", "recency", "random")
LEAVE_LAYERS_DENSE = ("quest", "unique")
KNOW_EVERY_KEY = ("oracle", "two_bit", "shared_basis")
READ_AGAIN_TOKENS = 64
MODEL_ROPE_BASE = 100000  # of SmolLM2


def selector_runs(budget):
    """LOCKS, the rivals and the best possible choices at one budget, by each method's own rule of what it counts; those
    that leave layers dense at that rule, and with all layers sparse."""
    runs = {
        "locks": {},
        "locks, parts, no completion": {"completion": 0},
        "locks, whole pages, no completion": PLAIN,
        **{f"{name}, parts": {"selector": name, "part_tokens": 4} for name in KNOW_EVERY_KEY},
        "oracle, whole pages": {"selector": "oracle"},
        **{rival: {"selector": rival} for rival in RIVALS},
    }
    runs["shadowkv"] |= {"rope_base": MODEL_ROPE_BASE, "rope_pairs": "interleaved"}
    runs |= {f"{name}, all layers": {"selector": name, "dense_layers": 0} for name in LEAVE_LAYERS_DENSE}
    return {name: {"budget_tokens": budget, **settings} for name, settings in runs.items()}


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def divergence(dense, other):
    """KL(dense || other) of each row in nats; both are logits, [positions, vocabulary]."""
    p, q = log_softmax(dense), log_softmax(other)
    return (np.exp(p) * (p - q)).sum(axis=-1)


def read_text(state, tokens, threads=2):
    """The saved cache of these tokens."""
    context = state.context("reading", context_tokens=len(tokens) + 64, num_threads=threads)
    context.read(tokens)
    cache = context.save()
    state.close("reading")
    return cache


def forced_steps(state, cache, tokens, start, threads=2, again=(), **options):
    """Logits after each of `tokens`, given one at a time behind a restored cache of `start` tokens, the last of which are
    read again: some selectors look at the queries of the prompt's end."""
    context = state.context("forced", context_tokens=start + len(tokens) + 64, num_threads=threads, **options)
    context.restore(cache)
    if len(again) > 0:
        context.remove(start - len(again), -1)
        context.read(again, start - len(again))
    logits = context.steps(tokens, start)
    state.close("forced")
    return logits


def load_document(state, path, max_tokens):
    return document.load(state.model, path, max_tokens, 2048)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="kl.py", description=__doc__.splitlines()[0])
    parser.add_argument("document", nargs="?", help="a text file; by default the project's own documentation and sources")
    parser.add_argument("--tokens", type=int, default=7500, help="tokens of context (default 7500)")
    parser.add_argument("--positions", type=int, default=64, help="positions to compare (default 64)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of docs/LLAMACPP.md to compare"
    )
    parser.add_argument("--selectors", type=int, metavar="BUDGET", help="compare LOCKS and its rivals at this budget")
    parser.add_argument("--plugin", type=Path, help="the plug-in to load (default: the one that make built)")
    parsed = parser.parse_args(arguments)
    if parsed.positions < 1 or any("=" not in setting for setting in parsed.set):
        parser.error("--positions takes a number from 1 on, --set takes NAME=VALUE")
    if parsed.set and parsed.selectors is not None:
        parser.error("--set and --selectors exclude each other")
    plugin = parsed.plugin or find_plugin()
    with Session(plugin, {"selector": "dense"}) as session:
        tokens, taken = session.run(load_document, parsed.document, parsed.tokens + parsed.positions)
        start = len(tokens) - parsed.positions
        print(f"document: {taken}", flush=True)
        cache = session.run(read_text, tokens[:start])
        again = tokens[start - READ_AGAIN_TOKENS : start]
        dense = session.run(forced_steps, cache, tokens[start:], start, 2, again)
    own = dict(part.split("=", 1) for part in parsed.set)
    if own:
        runs = {"as set": own}
    elif parsed.selectors is not None:
        runs = selector_runs(parsed.selectors)
    else:
        runs = {
            "default": {},
            "64 selected": with_selected(64),
            "64 selected, parts, no completion": with_selected(64, completion=0),
            "64 selected, whole pages, no completion": with_selected(64, **PLAIN),
        }
    print(
        f"{'settings':42} {'mean KL':>9} {'worst':>9} {'same token':>10} {'attended':>9} {'bytes':>7} {'coverage':>9}"
    )
    for name, settings in runs.items():
        with Session(plugin, settings) as session:
            sparse = session.run(forced_steps, cache, tokens[start:], start, 2, again)
            counted = session.run(statistics)
        kl = divergence(dense, sparse)
        same = np.mean(dense.argmax(axis=1) == sparse.argmax(axis=1))
        print(
            f"{name:42} {kl.mean():9.4f} {kl.max():9.4f} {same:10.1%} "
            f"{counted['attended_tokens']:9.0f} {share_of_bytes(counted):7.1%} "
            f"{coverage(settings, counted):9.3f}",
            flush=True,
        )
    return 0


def coverage(settings, counted):
    """As estimated; nan for selectors that estimate none."""
    return counted["coverage"] if settings.get("selector", "locks") in ("locks", *KNOW_EVERY_KEY) else float("nan")


def share_of_bytes(counted):
    """Read in decode steps, records and all, of what dense attention reads."""
    read = counted["score_bytes"] + counted["attend_bytes"] + counted["complete_bytes"]
    return read / counted["dense_bytes"]


def statistics(state):
    import locks_llamacpp

    return locks_llamacpp.statistics()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (document.DocumentError, HostError, FileNotFoundError, RuntimeError) as error:
        print(f"kl: {error}", file=sys.stderr)
        sys.exit(1)
