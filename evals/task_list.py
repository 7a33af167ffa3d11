"""Tasks by name. `kl`, `perplexity` and `replay` take any text and need no scorer; the others come from tasks.

A `Work` is one prompt as tokens: what is read first, what comes behind it, and what becomes of the answer."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
from dataclasses import dataclass

import numpy as np

from config import ConfigError, Task
from sample import Sample

FORCED = ("kl", "perplexity", "replay")
OF_ANSWERS = ("data", "haystack", "new_tokens", "repeats", "temperature", "top_p")
OF_REPLAY = ("data", "temperature", "top_p")  # of these
MAX_TEXT_BYTES = 8 << 20
MAX_KL_ROWS = 256  # of a question, for each of which a whole distribution is kept on the disk


@dataclass(frozen=True)
class Work:
    task: Task
    sample: Sample
    context: np.ndarray
    question: np.ndarray

    @property
    def index(self):
        return self.sample.index

    @property
    def forced(self):
        return self.task.name in FORCED

    @property
    def replayed(self):
        """Whether what is forced is the text that dense attention generates: there is no question then, but new tokens."""
        return self.task.name == "replay"

    @property
    def tokens(self):
        return len(self.context) + len(self.question) + self.sample.new_tokens

    def kl_rows(self, protocol):
        if self.replayed:
            return self.task.positions
        fed = len(self.question) - self.forced
        return fed if self.forced else 0 if protocol == "prompt-dense" else min(fed, MAX_KL_ROWS)

    def steps(self, protocol):
        """Decode steps, at most."""
        fed = 0 if protocol == "prompt-dense" and not self.forced else len(self.question)
        return fed + self.sample.new_tokens

    def digest(self):
        state = hashlib.sha256()
        for tokens in (self.context, self.question):
            state.update(np.ascontiguousarray(tokens, np.int32).tobytes() + b"|")
        state.update(repr((self.sample.answers, self.sample.new_tokens)).encode())
        return state.hexdigest()[:16]


def sources():
    """For the name of each task in the folder tasks: its module, and what the task is called there."""
    try:
        package = importlib.import_module("tasks")
    except ModuleNotFoundError:
        return {}
    found = {}
    for source in sorted(pkgutil.iter_modules(package.__path__), key=lambda source: source.name):
        module = importlib.import_module(f"tasks.{source.name}")
        if hasattr(module, "generate") and hasattr(module, "TASKS"):
            found |= {name if "/" in name else f"{source.name}/{name}": (module, name) for name in module.TASKS}
    return found


def known_names():
    return [*FORCED, *sources()]


def check(tasks, endpoints=()):
    """ConfigError where a name is not known, a file is missing, or an endpoint cannot do it, before anyone waits for a
    model."""
    import document

    known = known_names()
    for task in tasks:
        if task.name not in known:
            raise ConfigError(f"unknown task {task.name!r}. Known: {', '.join(known)}")
        if task.name in FORCED and endpoints:
            raise ConfigError(
                f"task {task.name!r} compares the distributions of next tokens, and an endpoint gives texts alone; "
                "take tasks that have answers, or methods of llama.cpp"
            )
        unset = Task(task.name, task.tokens, task.count)
        given = [key for key in OF_ANSWERS if getattr(task, key) != getattr(unset, key)]
        given = [key for key in given if not (task.name == "replay" and key in OF_REPLAY)]
        if task.name in FORCED and given:
            raise ConfigError(f"task {task.name!r} has no {given[0]}; its text is given by text = ..., and forced")
        if task.name != "replay" and task.min_positions:
            raise ConfigError(f"task {task.name!r} has no min_positions; that is for replay")
        if task.name not in FORCED and task.text:
            raise ConfigError(f"task {task.name!r} makes its own text; text is for {', '.join(FORCED)}")
        if task.name == "replay" and task.data:
            _check_problems(task)
        if task.text or (task.name in FORCED and not task.data):
            try:
                document.file_text(task.text, 1 << 16) if task.text else document.project_text()
            except document.DocumentError as error:
                raise ConfigError(f"task {task.name!r}: {error}") from error


def _check_problems(task):
    from tasks import mathematics

    if task.text:
        raise ConfigError("task 'replay' has text and data; it takes windows of a text, or the problems of a file")
    if task.tokens:
        raise ConfigError("task 'replay' has tokens and data; a problem is read whole, and positions says how much follows")
    try:
        mathematics.read_math500(task.data, limit=1)
    except ValueError as error:
        raise ConfigError(f"task {task.label!r}: {error}") from error


def make_samples(config, engine):
    """A task and a sample for every prompt of a configuration whose tasks all have answers; `engine` counts tokens."""
    return [(task, sample) for task in config.tasks for sample in _generate(task, config.seed, engine)]


def make_work(config, engine, beginning=()):
    """Every prompt of the configuration. `engine` makes tokens of texts; `beginning` are the tokens that a text of this
    model starts with."""
    beginning = np.array(beginning, np.int32)
    template = np.concatenate([beginning, _tokens(engine, config.before)]), _tokens(engine, config.after)
    plain = beginning, np.array([], np.int32)
    work = []
    for task in config.tasks:
        if task.name in FORCED:
            work += _problems(task, engine, *template) if task.data else _windows(task, engine, beginning)
            continue
        for sample in _generate(task, config.seed, engine):
            # A set that its benchmark gives without a chat template has none here either.
            work.append(_prompt(task, sample, engine, *(template if sample.details.get("chat", True) else plain)))
    return work


def _tokens(engine, text):
    return np.array(engine.tokenize(text, special=True) if text else [], np.int32)


def _generate(task, seed, engine):
    module, name = sources()[task.name]
    more = {key: value for key in ("data", "haystack", "new_tokens") if (value := getattr(task, key))}
    if task.repeats > 1:
        more["repeats"] = task.repeats
    for key in more:
        if key not in inspect.signature(module.generate).parameters:
            raise ConfigError(f"task {task.label!r} takes no {key}")
    try:
        return module.generate(name, task.tokens, task.count, seed, engine.count_tokens, **more)
    except (ValueError, OSError) as error:
        raise ConfigError(f"task {task.label!r}: {error}") from error


def _prompt(task, sample, engine, before, after):
    context = np.concatenate([before, engine.tokenize(sample.context)])
    question = np.concatenate([engine.tokenize(sample.question), after, _tokens_of_prefix(engine, sample.prefix)])
    if len(question) == 0:  # the answer's first token needs a row to come from
        context, question = context[:-1], context[-1:]
    if len(context) == 0:
        raise ConfigError(f"task {task.label!r}: sample {sample.index} has an empty context")
    return Work(task, sample, context.astype(np.int32), question.astype(np.int32))


def _tokens_of_prefix(engine, prefix):
    return np.array(engine.tokenize(prefix) if prefix else [], np.int32)


def _windows(task, engine, beginning):
    """`count` windows of a text, spread evenly over it, each with the positions that are forced behind it; or with room for
    what dense attention generates."""
    import document

    try:
        text = document.file_text(task.text, MAX_TEXT_BYTES) if task.text else document.project_text()
    except document.DocumentError as error:
        raise ConfigError(f"task {task.label!r}: {error}") from error
    tokens = np.asarray(engine.tokenize(text), np.int32)
    size = task.tokens + task.positions + 1
    if len(tokens) < size:
        raise ConfigError(f"task {task.label!r}: the text has {len(tokens):,} tokens, and {size:,} are needed")
    starts = np.linspace(0, len(tokens) - size, task.count).astype(int)
    for index, start in enumerate(starts):
        window = tokens[start : start + size]
        replays = task.name == "replay"
        details = {"length": task.tokens, "start": int(start)}
        sample = Sample(task.name, index, "", "", (), task.positions + 1 if replays else 0, details=details)
        context = np.concatenate([beginning, window[: task.tokens]])
        yield Work(task, sample, context, window[task.tokens : task.tokens if replays else None])


def _problems(task, engine, before, after):
    """`count` problems, spread evenly over a file of MATH-500's form, each with room for what dense attention writes."""
    from tasks import mathematics

    try:
        problems = mathematics.read_math500(task.data)
    except ValueError as error:
        raise ConfigError(f"task {task.label!r}: {error}") from error
    if task.count > len(problems):
        raise ConfigError(f"task {task.label!r}: count is {task.count}, and the file has {len(problems)} problems")
    for index, place in enumerate(np.linspace(0, len(problems) - 1, task.count).astype(int)):
        problem = problems[place]
        text = [engine.tokenize(problem.context), engine.tokenize(problem.question)]
        details = {key: value for key, value in problem.details.items() if key != "repeat"}
        sample = Sample(task.name, index, "", "", (), task.positions + 1, details=details)
        context = np.concatenate([before, *text, after]).astype(np.int32)
        yield Work(task, sample, context, context[:0])


def score(work, prediction, outcome):
    """Of forced texts lower is better, of everything else higher; None where there is nothing to score."""
    if work.task.name in ("kl", "replay"):
        return float(np.mean(outcome.kl))
    if work.task.name == "perplexity":
        return float(np.exp(np.mean(outcome.nll)))
    import scoring

    return float(scoring.score(work.sample, prediction))
