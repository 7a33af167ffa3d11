#!/usr/bin/env python3
"""One decode step as a picture: which tokens and pages each layer and head attended, over the text itself.

    python evals/inspect_step.py --text novel.txt --tokens 3000 --question "Who wrote the letter?" --set budget_tokens=256
    python evals/inspect_step.py --trace out/inspect/step.trace

Stock llama.cpp reads the text; its last step's queries, keys and values go through LOCKS. Writes step.trace and step.html.
"""

from __future__ import annotations

import argparse
import base64
import json
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
from attention_trace import MASSES, TraceError  # noqa: E402
from checks import ConfigError, suggest  # noqa: E402
from llama_host import HostError, real_model_path  # noqa: E402
from session import Session, SessionError  # noqa: E402

MIN_TOKENS, MAX_TOKENS = 32, 32768


def parse(arguments):
    parser = argparse.ArgumentParser(prog="evals/inspect_step.py", description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file (default: the project's own documentation and sources)")
    parser.add_argument("--tokens", type=int, default=2000, help="of it that are read (default: 2000)")
    parser.add_argument("--question", default="", help="what comes behind it; the step is the one behind its last token")
    parser.add_argument("--model", help="a GGUF file (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of LOCKS, as budget_tokens=256")
    parser.add_argument(
        "--out", type=Path, default=Path("out/inspect"), help="the folder to write to (default: out/inspect)"
    )
    parser.add_argument("--trace", type=Path, help="show this trace; nothing is read anew")
    parsed = parser.parse_args(arguments)
    if not MIN_TOKENS <= parsed.tokens <= MAX_TOKENS:
        parser.error(f"--tokens is {parsed.tokens}; it may be {MIN_TOKENS} to {MAX_TOKENS}")
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


def make(parsed):
    """The trace of a step of a model."""
    config = settings(parsed.set)
    path = parsed.model or real_model_path()
    with Session(None, {}, path) as session:
        step = session.run(_capture, str(parsed.text) if parsed.text else None, parsed.tokens, parsed.question)
    return attended.explain(step, config, Path(path).name)


def _capture(state, text, tokens, question):
    read, _ = document.load(state.model, text, tokens, MIN_TOKENS)
    beginning, asked = np.array(state.model.beginning, np.int32), state.model.tokenize(question)
    whole, own = np.concatenate([beginning, read, asked]).astype(np.int32), state.model.max_context_tokens
    if len(whole) > own:
        raise HostError(f"{len(whole):,} tokens are to be read, and the model was trained for {own:,}; take fewer: --tokens")
    return capture.read(state, whole)


def facts(trace):
    share = (trace.bytes["score"] + trace.bytes["attend"] + trace.bytes["complete"]) / max(trace.bytes["dense"], 1)
    attended_tokens = np.unpackbits(trace.attended.view(np.uint8)).sum() / (trace.layers * trace.query_heads)
    covered, stand_ins = (100 * mass.sum(-1).mean() for mass in (trace.covered_mass, trace.completed_mass))
    return (
        f"{trace.model}: {trace.layers} layers, {trace.query_heads} query heads, {len(trace.tokens):,} tokens in "
        f"{trace.pages} pages. {attended_tokens:,.0f} tokens attended, with {covered:.1f} % of the true mass; {stand_ins:.1f} % of "
        f"the mass given to stand-ins; {100 * share:.1f} % of the bytes of dense attention read. "
        + ", ".join(f"{key} {value}" for key, value in trace.settings.items())
    )


def page(trace):
    data = {"layers": trace.layers, "heads": trace.query_heads, "pages": trace.pages, "tokens": trace.tokens}
    data["facts"] = facts(trace)
    for name in MASSES:
        shares = np.round(np.minimum(getattr(trace, name), 1) * 65535).astype("<u2")
        data[name] = base64.b64encode(shares.tobytes()).decode()
    data["attended"] = base64.b64encode(trace.attended.astype("<u2").tobytes()).decode()
    # Nothing in a text may end the script that it stands in.
    text = json.dumps(data).replace("<", "\\u003c")
    return (HERE / "inspect_page.html").read_text(encoding="utf-8").replace("@DATA@", text)


def main(arguments=None):
    parsed = parse(arguments)
    trace = attention_trace.load(parsed.trace) if parsed.trace else make(parsed)
    parsed.out.mkdir(parents=True, exist_ok=True)
    if not parsed.trace:
        trace.save(parsed.out / "step.trace")
    (parsed.out / "step.html").write_text(page(trace), encoding="utf-8")
    print(f"{facts(trace)}\nwrote {parsed.out / 'step.html'}" + ("" if parsed.trace else " and step.trace"))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ConfigError, TraceError, HostError, SessionError, document.DocumentError, ValueError, OSError) as error:
        print(f"inspect: {error}", file=sys.stderr)
        sys.exit(1)
