#!/usr/bin/env python3
"""Decode steps as pictures: which tokens and pages each layer and head attended, over the text itself.

    python evals/inspect_step.py --text novel.txt --tokens 3000 --question "Who wrote the letter?" --set budget_tokens=256
    python evals/inspect_step.py --text novel.txt --tokens 3000 --question "Who wrote the letter?" --answer 32
    python evals/inspect_step.py --trace out/inspect/answer.trace

The first shows the step behind the question: stock llama.cpp reads the text, and that step's queries, keys and values go
through LOCKS. The second shows a whole answer, generated with the plug-in, which writes down its steps. The third shows a
trace that is there. Writes step.trace and step.html, or answer.trace and answer.html.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent / "python", HERE):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

import attended  # noqa: E402
import attention_trace  # noqa: E402
import capture  # noqa: E402
import document  # noqa: E402
import engine  # noqa: E402
from attention_trace import TraceError  # noqa: E402
from checks import ConfigError, suggest  # noqa: E402
from inspect_page import facts, page  # noqa: E402
from llama_host import HostError, real_model_path  # noqa: E402
from plugin_path import find_plugin  # noqa: E402
from session import Session  # noqa: E402

MIN_TOKENS, MAX_TOKENS = 32, 32768
MAX_ANSWER = 4096


def parse(arguments):
    parser = argparse.ArgumentParser(prog="evals/inspect_step.py", description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file (default: the project's own documentation and sources)")
    parser.add_argument("--tokens", type=int, default=2000, help="of it that are read (default: 2000)")
    parser.add_argument("--question", default="", help="what comes behind it; the step is the one behind its last token")
    parser.add_argument("--answer", type=int, metavar="N", help="show so many steps, of an answer, with the plug-in")
    parser.add_argument("--model", help="a GGUF file (default: SmolLM2-135M-Instruct)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of LOCKS, as budget_tokens=256; with --answer those of the plug-in (docs/LLAMACPP.md) in lower case",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/inspect"), help="the folder to write to (default: out/inspect)"
    )
    parser.add_argument("--plugin", type=Path, help="for --answer (default: the one that was built)")
    parser.add_argument("--trace", type=Path, help="show this trace; nothing is read anew")
    parsed = parser.parse_args(arguments)
    if not MIN_TOKENS <= parsed.tokens <= MAX_TOKENS:
        parser.error(f"--tokens is {parsed.tokens}; it may be {MIN_TOKENS} to {MAX_TOKENS}")
    if parsed.trace:
        for name in ("text", "question", "answer", "model", "set", "plugin"):
            if getattr(parsed, name):
                parser.error(f"--trace shows what a file has, and --{name} is for a new one")
    if parsed.answer is not None and not 1 <= parsed.answer <= MAX_ANSWER:
        parser.error(f"--answer is {parsed.answer}; it may be 1 to {MAX_ANSWER}")
    return parsed


def settings(pairs):
    """A Config of the library."""
    locks = attended.library()
    kinds = {name: type(field.default) for name, field in locks.Config.__dataclass_fields__.items()}
    values = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in kinds:
            raise ConfigError(f"--set {pair}: unknown setting {key!r}{suggest(key, kinds)}")
        try:
            values[key] = kinds[key](value)
        except ValueError:
            raise ConfigError(f"--set {pair}: expected a number") from None
    return locks.Config(**values)


def make_step(parsed):
    """The trace of a step of a model."""
    config = settings(parsed.set)
    path = parsed.model or real_model_path()
    with Session(None, {}, path) as session:
        step = session.run(_capture, _text(parsed), parsed.tokens, parsed.question)
    return attended.explain(step, config, Path(path).name)


def _capture(state, text, tokens, question):
    return capture.read(state, prompt(state.model, text, tokens, question))


def make_answer(parsed, path):
    """The trace of an answer, which the plug-in writes to `path`."""
    values = dict(pair.partition("=")[::2] for pair in parsed.set)
    values |= {"report": 0, "trace": path.absolute()}
    model = parsed.model or real_model_path()
    with Session(parsed.plugin or find_plugin(), values, model) as session:
        tokens = session.run(_answer, _text(parsed), parsed.tokens, parsed.question, parsed.answer)
    return dataclasses.replace(attention_trace.load(path), model=Path(model).name, tokens=tokens)


def _answer(state, text, tokens, question, steps):
    """Reads the prompt but for its last token, with exact attention; that token's step is the first one of the answer.
    Returns the text of all tokens."""
    whole = prompt(state.model, text, tokens, question, steps)
    context = state.context("answer", context_tokens=len(whole) + steps + 64)
    context.read(whole[:-1], chunk_tokens=engine.chunk_tokens(len(whole) - 1))
    known = [int(token) for token in whole]
    for position in range(len(whole) - 1, len(whole) - 1 + steps):
        logits = context.step(known[position], position)
        known.append(int(logits.argmax()))
        if state.model.is_end(known[-1]):
            break
    state.close("answer")
    return [state.model.detokenize([token]) for token in known]


def _text(parsed):
    return str(parsed.text) if parsed.text else None


def prompt(model, text, tokens, question, more=0):
    """The tokens to read; `more` are to have room behind them."""
    read, _ = document.load(model, text, tokens, MIN_TOKENS)
    whole = np.concatenate([np.array(model.beginning, np.int32), read, model.tokenize(question)]).astype(np.int32)
    count, own = len(whole) + more, model.max_context_tokens
    if count > own:
        raise HostError(f"{count:,} tokens are to be read, and the model was trained for {own:,}; take fewer: --tokens")
    return whole


def main(arguments=None):
    parsed = parse(arguments)
    parsed.out.mkdir(parents=True, exist_ok=True)
    path = parsed.trace or parsed.out / ("answer.trace" if parsed.answer else "step.trace")
    if not parsed.trace:
        made = make_answer(parsed, path) if parsed.answer else make_step(parsed)
        made.save(path)
    trace = attention_trace.load(path)  # what is shown is what the file holds
    shown = parsed.out / f"{path.stem}.html"
    shown.write_text(page(trace), encoding="utf-8")
    told = "".join(letter if letter.isprintable() else "?" for letter in facts(trace))  # a file may be anybody's
    print(f"{told}\nwrote {shown}" + ("" if parsed.trace else f" and {path.name}"))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    # Those of the host and of its process are RuntimeErrors.
    except (ConfigError, TraceError, document.DocumentError, RuntimeError, ValueError, OSError) as error:
        print(f"inspect: {error}", file=sys.stderr)
        sys.exit(1)
