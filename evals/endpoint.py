"""The client of a server with an OpenAI-compatible interface. What may pass is tried again: time-outs, lost connections,
broken answers, 408, 425, 429, and 5xx but 501. What the server refuses is said in its own words."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

import endpoint_http

MAX_WAIT = 60  # seconds between two tries
MAX_REPLY_BYTES = 64 << 20
SHOWN_LETTERS = 300  # of what a server said
PASSING = (408, 425, 429)
NOT_IMPLEMENTED = 501  # which, of 5xx, will not pass
# How an answer may have ended; with anything else, as `content_filter` or `abort`, it is not the model's.
WHOLE, CUT_OFF = ("stop", "eos", "eos_token", "stop_sequence", None), "length"
MAX_COUNT = 1 << 40  # of tokens


class EndpointError(RuntimeError):
    """No answer came, however often it was tried."""


class Refused(EndpointError):
    """The server will not answer this request, now or later."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


class _Passing(Exception):
    """One try failed, and the next may not."""

    def __init__(self, message, wait=0.0):
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True)
class Answer:
    text: str
    cut_off: bool  # it ended because there was no room for more
    prompt_tokens: int | None  # None where the server does not count
    new_tokens: int | None
    model: str  # which the server says it was


class Client:
    """For several threads at a time."""

    def __init__(self, endpoint, sleep=time.sleep):
        self.endpoint = endpoint
        self.model = endpoint.model
        self._key = endpoint.key()
        self._sleep = sleep
        self._opener = endpoint_http.opener(endpoint.url)
        self._can_tokenize = True

    def models(self, retries=None):
        """The names of the models that the server has; empty where it does not say."""

        def read(text):
            return [model["id"] for model in json.loads(text)["data"] if isinstance(model["id"], str)]

        try:
            return self._request(self.endpoint.url + "/models", None, read, retries)
        except Refused:
            return []

    def complete(self, prompt, max_tokens, **sampling):
        return self._answer("/completions", {"prompt": prompt, "max_tokens": max_tokens, **sampling}, lambda c: c["text"])

    def chat(self, content, max_tokens, **sampling):
        messages = [{"role": "user", "content": content}]
        body = {"messages": messages, "max_tokens": max_tokens, **sampling}
        return self._answer("/chat/completions", body, lambda c: c["message"]["content"])

    def count_tokens(self, text):
        """By /tokenize, which vLLM and llama-server have beside /v1; elsewhere by what the server counts for a prompt, in
        chats with what their template puts around it."""
        if self._can_tokenize:
            url = self.endpoint.url.removesuffix("/v1") + "/tokenize"
            # vLLM reads `prompt`, llama-server `content`.
            body = {"model": self.model, "prompt": text, "content": text, "add_special_tokens": False, "add_special": False}
            try:
                counted = self._request(url, body, _length_of_tokens)
            except Refused:
                counted = None
            if counted is not None:
                return counted
            self._can_tokenize = False
        counted = (self.chat if self.endpoint.chat else self.complete)(text, 1).prompt_tokens
        if counted is None:
            raise EndpointError(f"{self.endpoint.url} counts no tokens, neither by /tokenize nor in its answers")
        return counted

    def _answer(self, path, body, text_of):
        url = self.endpoint.url + path

        def read(text):
            reply = json.loads(text)
            choice = reply["choices"][0]
            text, end, usage = text_of(choice), choice.get("finish_reason"), reply.get("usage") or {}
            if end != CUT_OFF and end not in WHOLE:
                raise Refused(f"{url}: the answer ended by {self._shown(str(end))!r}", 200)
            if text is None and end == CUT_OFF:
                text = ""  # all that there was room for was thinking
            if not isinstance(text, str):
                raise TypeError("an answer without text")
            counts = [_count(usage.get(key)) for key in ("prompt_tokens", "completion_tokens")]
            # A result is written as UTF-8, which has no halves of letters.
            text = text.encode("utf-8", "replace").decode("utf-8")
            return Answer(text, end == CUT_OFF, *counts, str(reply.get("model") or ""))

        return self._request(url, {"model": self.model, **body, **self.endpoint.extra}, read)

    def _request(self, url, body, read, retries=None):
        """`read` makes of the server's reply what is returned; a reply that it cannot read is asked for again."""
        retries = self.endpoint.retries if retries is None else retries
        for done in range(retries + 1):
            try:
                return self._try(url, body, read)
            except _Passing as error:
                if done == retries:
                    tried = f", after {done + 1} tries" if done else ""
                    raise EndpointError(f"{url}: {error}{tried}") from None
                self._sleep(min(max(2.0**done, error.wait), MAX_WAIT))
        raise AssertionError("unreachable")

    def _try(self, url, body, read):
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers)
        try:
            with self._opener.open(request, timeout=self.endpoint.timeout) as response:
                text = endpoint_http.read_all(response, MAX_REPLY_BYTES)
        except urllib.error.HTTPError as error:
            raise self._failure(url, error) from None
        except TimeoutError:
            raise _Passing(f"no answer in {self.endpoint.timeout:g} s") from None
        except urllib.error.URLError as error:
            timed_out = isinstance(error.reason, TimeoutError)
            raise _Passing(f"no answer in {self.endpoint.timeout:g} s" if timed_out else str(error.reason)) from None
        except (http.client.HTTPException, OSError, ValueError) as error:  # the last: names of hosts, headers
            raise _Passing(f"the connection broke: {self._shown(str(error)) or type(error).__name__}") from None
        if text is None:
            raise Refused(f"{url}: an answer of more than {MAX_REPLY_BYTES >> 20} MiB", 200)
        try:
            return read(text)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise _Passing(f"not an answer: {self._shown(text.decode('utf-8', 'replace'))!r}") from None

    def _failure(self, url, error):
        with error:
            try:
                said = error.read(1 << 16).decode("utf-8", "replace")
            except (OSError, http.client.HTTPException, ValueError):
                said = ""
        message = f"status {error.code}: {self._shown(_words(said) or str(error.reason))}"
        if error.code in PASSING or error.code >= 500 and error.code != NOT_IMPLEMENTED:
            return _Passing(message, _seconds(error.headers.get("Retry-After")))
        return Refused(f"{url}: {message}", error.code)

    def _shown(self, said):
        """Without the key, of which no part may be left where the rest is cut off."""
        said = said.replace(self._key, "***") if self._key else said
        return " ".join(said.split())[:SHOWN_LETTERS]


def _length_of_tokens(text):
    """None where this is no list of tokens."""
    try:
        tokens = json.loads(text)["tokens"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return len(tokens) if isinstance(tokens, list) else None


def _count(value):
    """None where this is no number of tokens."""
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def _words(said):
    """The message in an error of the OpenAI form, or of others; the text itself where it is none."""
    try:
        error = json.loads(said)
        error = error.get("error", error)
        message = error if isinstance(error, str) else error.get("message") or error.get("detail")
        said = message if isinstance(message, str) else said
    except (ValueError, AttributeError):
        pass
    return said


def _seconds(retry_after):
    try:
        return max(float(retry_after), 0.0)  # a date is not waited for
    except (TypeError, ValueError):
        return 0.0
