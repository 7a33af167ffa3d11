"""What the runner asks of a model: one `Engine` is a llama.cpp in a process of its own with one set of settings.

The functions below `Engine` run in that process. Token ids are numpy int32 arrays."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from llama_host import TYPE_F16, TYPE_Q8_0, HostError
from sampling import Sampling, cut, generate

READ_AGAIN_TOKENS = 64  # of the context, exactly, in every run: RocketKV looks at the queries of a prompt's end
DECODE_ROWS = 8  # so few rows in a step count as decoding
CACHE_TYPES = {"f16": TYPE_F16, "q8_0": TYPE_Q8_0}
NUMBER_BYTES = {"f16": 2, "q8_0": 34 / 32}  # q8_0: with a 16-bit scale for each 32


@dataclass(frozen=True)
class Job:
    """One prompt: `context` is in the cache file, the tokens of `question` come behind it.

    `forced`: the last token of the question is only predicted, and nothing is generated. `kl_rows`: so many of the last
    rows are compared with those of dense attention, in the file `rows`."""

    cache: Path
    rows: Path
    context: np.ndarray
    question: np.ndarray
    new_tokens: int
    forced: bool
    prompt_dense: bool
    kl_rows: int
    sampling: Sampling = Sampling()
    read_anew: bool = False  # the context is read, and not restored: for methods that the saved cache does not fit
    trajectory: Path | None = None  # a file for what `read` generates instead of a question, `new_tokens` of it at most

    @property
    def fed(self):
        return self.question[:-1] if self.forced else self.question


@dataclass
class Outcome:
    text: str
    new_tokens: int
    kl: list  # of each compared row, in nats
    nll: list  # of each next token of a forced question, in nats
    same: list  # of each compared row, whether its likeliest token is the same
    seconds: float  # of the decode steps
    statistics: dict  # of the plug-in, over the decode steps


class Engine:
    def __init__(self, model_path, plugin, settings, threads, rope_scale=None):
        cache_type = CACHE_TYPES[settings.get("cache_type", "f16")]
        self._options = {"num_threads": threads, "rope_scale": rope_scale, "cache_type": cache_type}
        self._process = (plugin, {"report": 0, **of_plugin(settings)}, model_path)
        self._start()

    def _start(self):
        from session import Session

        self._session = Session(*self._process)

    def restart(self):
        """After a failure: the process may be gone, or hold what it began."""
        self.close()
        self._start()

    def facts(self):
        return self._session.run(_facts, self._options)

    def tokenize(self, text, special=False):
        return self._session.run(_tokenize, text, special)

    def count_tokens(self, text):
        return self._session.run(_count_tokens, text)

    def read(self, job):
        """Reads the context, saves its cache, and saves what is replayed and the rows that others are compared with. Returns
        the seconds that the context took."""
        return self._session.run(_read, job, self._options)

    def answer(self, job):
        return self._session.run(_answer, job, self._options)

    def close(self):
        self._session.close()

    def kill(self):
        """Ends the process in whatever it does; another thread that waits for it gets a SessionError."""
        self._session.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def of_plugin(settings):
    """A method's settings but for those of llama.cpp."""
    return {key: value for key, value in settings.items() if key != "cache_type"}


def check_settings(plugin, settings):
    """Loads the plug-in with these settings in a process without a model; RuntimeError where it refuses."""
    import multiprocessing

    process = multiprocessing.get_context("spawn").Process(target=_load, args=(str(plugin), of_plugin(settings)))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(
            f"the plug-in refused, with status {process.exitcode}; its reason is on the standard error stream"
        )


def _load(plugin, settings):
    import os
    import sys

    import locks_llamacpp
    from llama_host import Host

    for name in [name for name in os.environ if name.startswith("LOCKS_")]:
        del os.environ[name]
    host = Host()  # llama.cpp keeps a callback of it
    try:
        locks_llamacpp.enable(plugin, host.library, report=0, **settings)
    except RuntimeError as error:
        sys.exit(f"eval: {error}")


def _facts(state, options):
    """What the model is, and what the plug-in says to its attention."""
    import locks_llamacpp

    model = state.model
    probe = state.context("probe", context_tokens=256, **options)
    locks_llamacpp.reset_statistics()
    probe.read(np.ones(32, np.int32))
    probe.step(1, 32)
    state.close("probe")
    counted = locks_llamacpp.statistics()
    return {
        "host": f"xllamacpp {state.host.version}",
        "plugin": counted["version"],
        "model_name": model.metadata("general.name") or "",
        "architecture": model.metadata("general.architecture") or "",
        "layers": model.num_layers,
        "query_heads": model.num_query_heads,
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "vocabulary": model.vocabulary_size,
        "max_context_tokens": model.max_context_tokens,
        "rope_pairs": model.rope_pairs,
        "rope_base": model.metadata("{arch}.rope.freq_base"),
        "rope_dims": model.metadata("{arch}.rope.dimension_count"),
        "beginning": [int(token) for token in model.beginning],
        "calls_taken": counted["calls_taken"],
        "declined": counted["declined"],
    }


def _tokenize(state, text, special):
    return state.model.tokenize(text, special)


def _count_tokens(state, text):
    return len(state.model.tokenize(text))


def chunk_tokens(count):
    """The longest chunk, up to a batch, that leaves no rest so short that it would count as decoding."""
    from llama_host import BATCH_TOKENS

    chunk = BATCH_TOKENS
    while 0 < count % chunk <= DECODE_ROWS and chunk > DECODE_ROWS + 1:
        chunk -= 1
    return chunk


def _read_exactly(context, tokens, start=0):
    return context.read(tokens, start, chunk_tokens=chunk_tokens(len(tokens)))


def _room(job):
    return len(job.context) + len(job.question) + job.new_tokens + 64


def _read(state, job, options):
    context = state.context("reading", context_tokens=_room(job), **options)
    started = time.perf_counter()
    _read_exactly(context, job.context)
    seconds = time.perf_counter() - started
    np.save(job.cache, context.save())
    state.close("reading")
    if job.trajectory:
        _write_trajectory(state, job, options)
        job = _with_trajectory(job)
    if job.kl_rows > 0:
        context, _ = _prepare(state, job, options)
        rows = np.lib.format.open_memmap(
            job.rows, mode="w+", dtype=np.float32, shape=(job.kl_rows, state.model.vocabulary_size)
        )
        skipped = len(job.fed) - job.kl_rows
        for i, token in enumerate(job.fed):
            logits = context.step(token, len(job.context) + i)
            if i >= skipped:
                rows[i - skipped] = logits
        rows.flush()
        state.close("answer")
    return seconds


def _write_trajectory(state, job, options):
    context, logits = _prepare(state, job, options)
    tokens, _ = generate(context, state.model, logits, len(job.context), job.new_tokens, job.sampling)
    state.close("answer")
    if len(tokens) < 2:
        raise HostError("the model ends its text at once, and nothing is there to replay")
    np.save(job.trajectory, np.array(tokens, np.int32))


def _with_trajectory(job):
    tokens = np.load(job.trajectory)
    return replace(job, question=tokens, new_tokens=0, kl_rows=len(tokens) - 1)


def _prepare(state, job, options):
    """A context with the saved cache, the end of the text read again; with the question too where the whole prompt is
    dense, and then the logits behind it."""
    context = state.context("answer", context_tokens=_room(job), **options)
    begin = 0
    if not job.read_anew:
        begin = max(0, len(job.context) - READ_AGAIN_TOKENS)
        context.restore(np.load(job.cache, mmap_mode="r"))
        context.remove(begin, -1)
    tokens = np.concatenate([job.context, job.question]) if job.prompt_dense else job.context
    return context, _read_exactly(context, tokens[begin:], begin)


def _answer(state, job, options):
    import locks_llamacpp
    from kl import divergence, log_softmax

    if job.trajectory:
        job = _with_trajectory(job)
    context, logits = _prepare(state, job, options)
    locks_llamacpp.reset_statistics()
    rows = np.load(job.rows, mmap_mode="r") if job.kl_rows > 0 else None
    kl, nll, same, seconds = [], [], [], 0.0
    for i, token in enumerate([] if job.prompt_dense else job.fed):
        started = time.perf_counter()
        logits = context.step(token, len(job.context) + i)
        seconds += time.perf_counter() - started
        row = i - (len(job.fed) - job.kl_rows)
        if rows is not None and row >= 0:
            kl.append(float(divergence(np.asarray(rows[row]), logits)))
            same.append(bool(rows[row].argmax() == logits.argmax()))
        if job.forced:
            nll.append(-float(log_softmax(logits)[job.question[i + 1]]))
    tokens = []
    if job.new_tokens > 0:
        start = len(job.context) + len(job.question)
        tokens, spent = generate(context, state.model, logits, start, job.new_tokens, job.sampling)
        seconds += spent
    if tokens and state.model.is_end(tokens[-1]):
        tokens.pop()
    counted = locks_llamacpp.statistics()
    state.close("answer")
    text = cut(state.model.detokenize(np.array(tokens, np.int32)), job.sampling.stop) if tokens else ""
    if job.trajectory:
        text = state.model.detokenize(job.question)
    return Outcome(text, len(tokens), kl, nll, same, seconds, counted)
