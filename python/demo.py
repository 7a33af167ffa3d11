"""A real model reads a long document in an unmodified llama.cpp, once with stock attention and once with LOCKS.

Each run is a process of its own. The second one takes over the key-value cache that the first one filled, so both
continue from the same numbers, and it reads parts of the document again to measure the prompt.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import document
import table
from llama_host import BATCH_TOKENS, HostError
from plugin_path import ROOT, find_plugin
from progress import Progress
from session import Session, SessionError

MIN_TOKENS = 2048
MIN_ANSWER_TOKENS = 16  # enough steps for a median
SYSTEM = "<|im_start|>system\nYou answer questions about a document.<|im_end|>\n<|im_start|>user\n"
QUESTION = "\n\nList the five main ideas of this document.<|im_end|>\n<|im_start|>assistant\n"


def make_prompt(state, path, max_tokens):
    """The document between the question's two halves: its tokens, and what was taken of it."""
    before = state.model.tokenize(SYSTEM, special=True)
    after = state.model.tokenize(QUESTION, special=True)
    tokens, taken = document.load(state.model, path, max_tokens - len(before) - len(after), MIN_TOKENS)
    return np.concatenate([before, tokens, after]), taken


def open_context(state, tokens, threads, room):
    return state.context(context_tokens=len(tokens) + room, num_threads=threads)


def read_document(state, tokens, threads, room):
    """Reads the whole prompt; returns the seconds of each chunk and the first token that follows."""
    progress = Progress("reading the document", len(tokens))
    seconds = []

    def on_chunk(done, elapsed):
        seconds.append(elapsed)
        progress.update(done)

    logits = open_context(state, tokens, threads, room).read(tokens, on_chunk=on_chunk)
    return seconds, choose(state.model, logits, [])


def save_cache(state, path):
    np.save(path, state.context().save())


def restore_cache(state, path, tokens, threads, room):
    started = time.perf_counter()
    open_context(state, tokens, threads, room).restore(np.load(path))
    return time.perf_counter() - started


def choose(model, logits, tokens):
    """The likeliest token that does not repeat three tokens of the answer: so small a model would run in circles
    otherwise."""
    repeated = [tokens[i + 2] for i in range(len(tokens) - 2) if tokens[i : i + 2] == tokens[-2:]]
    logits[repeated] = -np.inf
    while len(tokens) < MIN_ANSWER_TOKENS and model.is_end(np.argmax(logits)):
        logits[np.argmax(logits)] = -np.inf
    return int(np.argmax(logits))


def answer(state, first, position, count):
    """Decodes from `first` on and prints the words as they come. Returns the tokens, the seconds of each step and the
    text."""
    context, model = state.context(), state.model
    tokens, seconds, shown = [first], [], ""

    def show():
        nonlocal shown
        text = model.detokenize(tokens)
        print(text[len(shown) :], end="", flush=True)
        shown = text

    while len(tokens) < count and not model.is_end(tokens[-1]):
        show()
        started = time.perf_counter()
        logits = context.step(tokens[-1], position + len(tokens) - 1)
        seconds.append(time.perf_counter() - started)
        tokens.append(choose(model, logits, tokens))
    if model.is_end(tokens[-1]):
        tokens.pop()
    show()
    print(flush=True)
    return tokens, seconds, shown


def statistics(state):
    import locks_llamacpp

    return locks_llamacpp.statistics()


def read_samples(state, tokens, chunks):
    """Reads these chunks of the prompt again, the last one first, each on the cache of what precedes it; the seconds of
    each."""
    context = state.context()
    progress = Progress("reading parts of the document", len(chunks) * BATCH_TOKENS)
    seconds = {}
    for chunk in sorted(chunks, reverse=True):
        begin = chunk * BATCH_TOKENS
        context.remove(begin)
        context.read(
            tokens[begin : begin + BATCH_TOKENS],
            start=begin,
            on_chunk=lambda done, elapsed: seconds.update({chunk: elapsed}),
        )
        progress.update(len(seconds) * BATCH_TOKENS)
    return [seconds[chunk] for chunk in chunks]


def first_difference(a, b):
    """How many leading tokens two texts share, or None where one continues the other to its end."""
    common = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return None if common == len(a) == len(b) else common


def run(arguments, plugin, out):
    room = arguments.generate + 64
    state_file = out / "demo-cache.npy"
    settings = dict(part.split("=", 1) for part in arguments.set)
    try:
        print("== stock llama.cpp, flash attention on", flush=True)
        with Session() as stock:
            tokens, taken = stock.run(make_prompt, arguments.document, arguments.tokens)
            print(f"document: {taken}; {len(tokens):,} tokens with the question", flush=True)
            stock_chunks, first = stock.run(read_document, tokens, arguments.threads, room)
            stock.run(save_cache, state_file)
            stock_tokens, stock_steps, stock_text = stock.run(answer, first, len(tokens), arguments.generate)
        print("\n== the same llama.cpp with LOCKS, on the same cache", flush=True)
        with Session(plugin, settings) as locks:
            restored = locks.run(restore_cache, state_file, tokens, arguments.threads, room)
            print(f"took over the cache in {restored:.1f} s", flush=True)
            locks_tokens, locks_steps, locks_text = locks.run(answer, first, len(tokens), arguments.generate)
            counted = locks.run(statistics)
            whole = len(tokens) // BATCH_TOKENS
            chunks = list(range(whole)) if arguments.read_all else sorted({round(i) for i in np.linspace(0, whole - 1, 5)})
            locks_chunks = locks.run(read_samples, tokens, chunks)
    finally:
        state_file.unlink(missing_ok=True)
    return table.Outcome(
        context_tokens=len(tokens),
        threads=arguments.threads,
        document=taken,
        stock_prompt_seconds=sum(stock_chunks),
        sampled_tokens=len(chunks) * BATCH_TOKENS,
        sampled_stock_seconds=sum(stock_chunks[chunk] for chunk in chunks),
        sampled_locks_seconds=sum(locks_chunks),
        stock_step_seconds=stock_steps,
        locks_step_seconds=locks_steps,
        first_difference=first_difference(stock_tokens, locks_tokens),
        num_generated=len(locks_tokens),
        stock_text=stock_text,
        locks_text=locks_text,
        statistics=counted,
    )


def parse(arguments):
    parser = argparse.ArgumentParser(prog="demo.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "document", nargs="?", help="a text file of yours; by default the project's own documentation and sources"
    )
    parser.add_argument(
        "--tokens", type=int, default=7500, help="read at most this many tokens (default 7500; the model takes 8192)"
    )
    parser.add_argument("--generate", type=int, default=64, help="tokens to generate (default 64)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: the cores there are")
    parser.add_argument("--read-all", action="store_true", help="LOCKS reads the whole document too, not five parts of it")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of docs/LLAMACPP.md, as budget_tokens=256",
    )
    parser.add_argument("--plugin", type=Path, help="the plug-in to load (default: the one that make built)")
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="where demo.json goes (default out)")
    parsed = parser.parse_args(arguments)
    if not MIN_TOKENS <= parsed.tokens <= 8000:
        parser.error(f"--tokens is {parsed.tokens}; it may be {MIN_TOKENS} to 8000")
    if not 2 <= parsed.generate <= 128:
        parser.error(f"--generate is {parsed.generate}; it may be 2 to 128")
    if parsed.threads < 1:
        parser.error(f"--threads is {parsed.threads}; it may be 1 or more")
    if any("=" not in setting for setting in parsed.set):
        parser.error("--set takes NAME=VALUE")
    return parsed


def main(arguments=None):
    parsed = parse(arguments)
    # What is wrong should not cost a wait.
    if parsed.document:
        document.file_text(parsed.document, 1 << 16)
    plugin = parsed.plugin or find_plugin()
    if not plugin.is_file():
        raise FileNotFoundError(f"no such file: {plugin}")
    parsed.out.mkdir(parents=True, exist_ok=True)
    outcome = run(parsed, plugin, parsed.out)
    print("\n" + table.render(outcome))
    path = parsed.out / "demo.json"
    path.write_text(json.dumps(table.as_json(outcome), indent=2) + "\n")
    print(f"\nwrote {path}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (document.DocumentError, HostError, SessionError, FileNotFoundError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
