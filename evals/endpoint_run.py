"""A run over endpoints: every sample to every server, several at a time, a line of results for each."""

from __future__ import annotations

import dataclasses
import hashlib
import queue
import threading
import time

import sampling
import scoring
import task_list
from config import Config, ConfigError, Task
from endpoint import Client, EndpointError, Refused
from estimate import in_words
from progress import Progress
from results import Folder
from sample import Sample

GIVE_UP_AFTER = 10  # samples in a row that were not answered: the server is away, or the key has expired
OF_THE_SAMPLE = (200, 400, 413, 422)  # statuses of refusals that another sample may not meet, as of one that is too long
# What one sample may end with; a score that cannot be made or written, too.
FAILURES = (EndpointError, MemoryError, OSError, ValueError, ArithmeticError)


@dataclasses.dataclass
class EndpointRun:
    config: Config
    command: str = ""
    say: object = print
    make_client: type = Client

    def go(self):
        clients = {name: self.make_client(endpoint) for name, endpoint in self.config.endpoints.items()}
        servers = {name: find_model(name, client) for name, client in clients.items()}
        for name, client in clients.items():
            servers[name] |= check_answers(name, client, self.config)
        first = next(iter(clients.values()))
        try:
            samples = task_list.make_samples(self.config, first)
        except EndpointError as error:
            raise ConfigError(f"tokens cannot be counted: {error}") from error
        identity = self._identity(clients, samples)
        with Folder(self.config.out) as folder:
            results = folder.open(identity)
            done = {(r["task"], r["index"], r["method"]) for r in results if "failed" not in r}
            self._say_what(servers, samples, done)
            described = {"endpoints": servers, "command": self.command, "prompts": len(samples)}
            folder.describe(identity, described)
            progress = _Left(len(done), len(samples) * len(clients), self.config.progress)
            for name, client in clients.items():
                missing = [pair for pair in samples if (pair[0].label, pair[1].index, name) not in done]
                self._answer(name, client, missing, folder, progress)
        return folder.path

    def _answer(self, name, client, pairs, folder, progress):
        unanswered, counted = 0, {}

        def ask(pair):
            more = room_to_begin(client, pair[1], counted)
            started = time.monotonic()
            answer = ask_for(client, *pair, self.config, more)
            return answer, time.monotonic() - started

        for (task, sample), outcome in in_parallel(ask, pairs, client.endpoint.requests):
            base = {"task": task.label, "name": task.name, "index": sample.index, "method": name}
            failed = None
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                folder.append(base | describe_result(sample, *outcome))
            except FAILURES as error:
                failed = error
                folder.append({**base, "failed": f"{type(error).__name__}: {error}"})
            progress.step(failed is None, name)
            unanswered = unanswered + 1 if is_of_the_server(failed) else 0
            if unanswered == GIVE_UP_AFTER:
                raise EndpointError(
                    f"{unanswered} requests in a row got no answer; the last: {failed}. The same command goes on"
                )

    def _identity(self, clients, samples):
        prompts = {}
        for task, sample in samples:
            text = repr((completion_prompt(sample, self.config), sample.answers, sample.new_tokens))
            prompts.setdefault(task.label, hashlib.sha256()).update(text.encode("utf-8", "replace"))
        methods = {name: {**client.endpoint.identity(), "model": client.model} for name, client in clients.items()}
        return {
            "config": {**self.config.identity(), "methods": methods},
            "prompts": {label: state.hexdigest()[:16] for label, state in prompts.items()},
        }

    def _say_what(self, servers, samples, done):
        for name, server in servers.items():
            self.say(f"{name}: {server['model']} at {server['url']}")
        self.say(f"seed {self.config.seed}; whole prompts are sent, and tokens are counted by the first server")
        self.say(f"{len(samples)} prompts x {len(servers)} methods; {len(done)} results are there already")


def find_model(name, client):
    """Settles which model is asked for."""
    if not client.model:
        try:
            known = client.models()
        except EndpointError as error:
            raise ConfigError(f"method {name!r}: {error}") from error
        if len(known) != 1:
            there = f"has {', '.join(known)}" if known else "does not say which it has"
            raise ConfigError(f"method {name!r}: model is missing, and the server {there}")
        client.model = known[0]
    return {"url": client.endpoint.url, "model": client.model}


def check_answers(name, client, config):
    """One token, so that a wrong model or key is said before the run. Returns what the server says it served."""
    sample = Sample("check", 0, "One", " two", (), 1)
    try:
        answer = ask_for(client, Task(sample.task, 0, 1), sample, config)
    except EndpointError as error:
        there = others(client) if isinstance(error, Refused) else ""
        raise ConfigError(f"method {name!r}: {error}{there}") from error
    return {"served": answer.model}


def others(client):
    """What else might be asked for, to be said behind a refusal."""
    try:
        known = client.models(retries=0)
    except EndpointError:
        return ""
    return f"; the server has {', '.join(known)}" if known else ""


def is_of_the_server(failed):
    """Whether it would go the same way with any other sample."""
    return isinstance(failed, EndpointError) and not (isinstance(failed, Refused) and failed.status in OF_THE_SAMPLE)


def completion_prompt(sample, config):
    """As one text. A set that its benchmark gives without a chat template has none here either."""
    prompt = sample.context + sample.question
    if sample.details.get("chat", True):
        prompt = config.before + prompt + config.after
    return prompt + sample.prefix


def is_chat(client, sample):
    return client.endpoint.chat and sample.details.get("chat", True)


def room_to_begin(client, sample, counted):
    """Tokens of what a chat's answer is to begin with; `counted` keeps them, by text."""
    if not sample.prefix or not is_chat(client, sample):
        return 0
    if sample.prefix not in counted:
        counted[sample.prefix] = client.count_tokens(sample.prefix)
    return counted[sample.prefix]


def ask_for(client, task, sample, config, more=0):
    """`more`: tokens that a chat's answer may have besides those of the sample."""
    chosen = sampling.of(task, sample, config.seed)
    asked = {"temperature": chosen.temperature}
    if chosen.temperature:
        asked |= {"top_p": chosen.top_p, "seed": chosen.seed}
    if not is_chat(client, sample):
        answer = client.complete(completion_prompt(sample, config), sample.new_tokens, **asked)
        # A server would end at a `stop` that comes first, too.
        return dataclasses.replace(answer, text=sampling.cut(answer.text, chosen.stop))
    # Not every server goes on with a message of its own, so the answer's beginning stands at the end of the question, as in
    # RULER. Models repeat it, for which there has to be room.
    answer = client.chat(sample.context + sample.question + sample.prefix, sample.new_tokens + more, **asked)
    return dataclasses.replace(answer, text=behind(sample.prefix, answer.text))


def behind(prefix, text):
    """What an answer says behind the beginning that it was to have."""
    prefix, begun = prefix.strip(), text.lstrip()
    return begun[len(prefix) :] if prefix and begun.startswith(prefix) else text


def describe_result(sample, answer, seconds):
    return {
        "score": float(scoring.score(sample, answer.text)),
        "prediction": answer.text,
        "answers": list(sample.answers),
        "details": sample.details,
        "prompt_tokens": answer.prompt_tokens,
        "new_tokens": answer.new_tokens,
        "cut_off": answer.cut_off,
        "seconds": seconds,
    }


def in_parallel(function, items, workers):
    """Pairs of an item and what `function` returned or raised, as they are done. The threads are daemons, so that an
    interrupted run does not wait for its servers."""
    waiting, done = queue.SimpleQueue(), queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    stopped = threading.Event()

    def work():
        while not stopped.is_set():
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((item, function(item)))
            except Exception as error:
                done.put((item, error))

    for _ in range(min(workers, len(items))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in items:
            yield done.get()
    finally:
        stopped.set()


class _Left:
    """How far a run is, and how long the rest will take, by what was answered so far."""

    def __init__(self, done, total, shown):
        self._done, self._left, self._asked = done, total - done, 0
        self._progress = Progress("eval", total, "results") if shown else None
        self._started = time.monotonic()

    def step(self, succeeded, what):
        self._done += succeeded
        self._left -= 1
        self._asked += 1
        if self._progress:
            each = (time.monotonic() - self._started) / self._asked
            self._progress.update(self._done, f", about {in_words(each * self._left)} left; {what}")
