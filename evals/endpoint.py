"""The client of a server with an OpenAI-compatible interface. What may pass is tried again: time-outs, lost connections,
broken answers, 408, 429 and 5xx. What the server refuses is said in its own words."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

MAX_WAIT = 60  # seconds between two tries
MAX_REPLY_BYTES = 64 << 20
SHOWN_LETTERS = 300  # of what a server said
PASSING = (408, 425, 429)
NOT_THERE = (404, 405, 501)
# How an answer may have ended; with anything else, as `content_filter` or `abort`, it is not the model's.
WHOLE, CUT_OFF = ("stop", "eos", "eos_token", "stop_sequence", None), "length"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


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


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A key goes to no other address than the one that was named."""

    def redirect_request(self, *_):
        return None


class Client:
    """For several threads at a time."""

    def __init__(self, endpoint, sleep=time.sleep):
        self.endpoint = endpoint
        self.model = endpoint.model
        self._key = endpoint.key()
        self._sleep = sleep
        # What environments say of proxies is not meant for servers of this machine.
        local = urllib.parse.urlsplit(endpoint.url).hostname in LOCAL_HOSTS
        self._opener = urllib.request.build_opener(_NoRedirect, *([urllib.request.ProxyHandler({})] if local else []))
        self._can_tokenize = True

    def models(self):
        """The names of the models that the server has; empty where it does not say."""
        try:
            listed = self._request("/models", None, retries=0)["data"]
            return [model["id"] for model in listed if isinstance(model["id"], str)]
        except Refused:
            return []
        except (KeyError, TypeError) as error:
            raise EndpointError(f"{self.endpoint.url}/models: not a list of models") from error

    def complete(self, prompt, max_tokens, **sampling):
        return self._answer("/completions", {"prompt": prompt, "max_tokens": max_tokens, **sampling}, lambda c: c["text"])

    def chat(self, content, max_tokens, **sampling):
        messages = [{"role": "user", "content": content}]
        body = {"messages": messages, "max_tokens": max_tokens, **sampling}
        return self._answer("/chat/completions", body, lambda c: c["message"]["content"])

    def count_tokens(self, text):
        """By /tokenize, which vLLM and llama-server have beside /v1; elsewhere by what the server counts for a prompt."""
        if self._can_tokenize:
            root = self.endpoint.url.removesuffix("/v1")
            # vLLM reads `prompt`, llama-server `content`.
            body = {"model": self.model, "prompt": text, "content": text, "add_special_tokens": False, "add_special": False}
            try:
                return self._request("/tokenize", body, root=root, read=lambda reply: len(reply["tokens"]))
            except Refused as error:
                if error.status not in NOT_THERE:
                    raise
                self._can_tokenize = False
        counted = self.complete(text, 1).prompt_tokens
        if counted is None:
            raise EndpointError(f"{self.endpoint.url} counts no tokens, neither by /tokenize nor in its answers")
        return counted

    def _answer(self, path, body, text_of):
        def read(reply):
            choice = reply["choices"][0]
            text, end, usage = text_of(choice), choice.get("finish_reason"), reply.get("usage") or {}
            if end != CUT_OFF and end not in WHOLE:
                raise Refused(f"{self.endpoint.url}{path}: the answer ended by {end!r}", 200)
            if text is None and end == CUT_OFF:
                text = ""  # all that there was room for was thinking
            if not isinstance(text, str):
                raise TypeError("an answer without text")
            counts = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")]
            counts = [count if isinstance(count, int) else None for count in counts]
            # A result is written as UTF-8, which has no halves of letters.
            text = text.encode("utf-8", "replace").decode("utf-8")
            return Answer(text, end == CUT_OFF, *counts, str(reply.get("model") or ""))

        return self._request(path, {"model": self.model, **body, **self.endpoint.extra}, read=read)

    def _request(self, path, body, root=None, retries=None, read=lambda reply: reply):
        """`read` makes of the server's JSON what is returned; a reply that it cannot read is asked for again."""
        url = (self.endpoint.url if root is None else root) + path
        retries = self.endpoint.retries if retries is None else retries
        for done in range(retries + 1):
            try:
                return self._try(url, body, read)
            except _Passing as error:
                if done == retries:
                    tried = f", after {done + 1} tries" if done else ""
                    raise EndpointError(self._without_key(f"{url}: {error}{tried}")) from None
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
                text = self._read_all(response)
        except urllib.error.HTTPError as error:
            raise self._failure(url, error) from None
        except TimeoutError:
            raise _Passing(f"no answer in {self.endpoint.timeout:g} s") from None
        except urllib.error.URLError as error:
            timed_out = isinstance(error.reason, TimeoutError)
            raise _Passing(f"no answer in {self.endpoint.timeout:g} s" if timed_out else str(error.reason)) from None
        except (http.client.HTTPException, OSError, UnicodeError) as error:  # the last: of names that no host can have
            raise _Passing(f"the connection broke: {error or type(error).__name__}") from None
        try:
            return read(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            shown = text[:SHOWN_LETTERS].decode("utf-8", "replace")
            raise _Passing(f"not an answer: {shown!r}") from None

    def _read_all(self, response):
        """A time-out of sockets is for each piece; this is for the whole."""
        end, pieces, size = time.monotonic() + self.endpoint.timeout, [], 0
        announced = response.headers.get("Content-Length")
        whole = int(announced) if announced and announced.isdigit() else None
        while size != whole and (piece := response.read1(1 << 16)):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_REPLY_BYTES:
                raise Refused(f"{self.endpoint.url}: an answer of more than {MAX_REPLY_BYTES >> 20} MiB", 200)
            if time.monotonic() > end:
                raise TimeoutError
        if whole is not None and size < whole:
            raise http.client.IncompleteRead(b"".join(pieces), whole - size)
        return b"".join(pieces)

    def _failure(self, url, error):
        with error:
            try:
                said = error.read(1 << 16).decode("utf-8", "replace")
            except (OSError, http.client.HTTPException):
                said = ""
        message = f"status {error.code}: {_words(said) or error.reason}"
        if error.code in PASSING or error.code >= 500 and error.code not in NOT_THERE:
            return _Passing(message, _seconds(error.headers.get("Retry-After")))
        return Refused(self._without_key(f"{url}: {message}"), error.code)

    def _without_key(self, message):
        return message.replace(self._key, "***") if self._key else message


def _words(said):
    """The message in an error of the OpenAI form, or of others; the text itself where it is none."""
    try:
        error = json.loads(said)
        error = error.get("error", error)
        message = error if isinstance(error, str) else error.get("message") or error.get("detail")
        said = message if isinstance(message, str) else said
    except (ValueError, AttributeError):
        pass
    return " ".join(said.split())[:SHOWN_LETTERS]


def _seconds(retry_after):
    try:
        return max(float(retry_after), 0.0)  # a date is not waited for
    except (TypeError, ValueError):
        return 0.0
