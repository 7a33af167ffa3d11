"""A small server with an OpenAI-compatible interface, for tests of its client."""

import http.server
import json
import socket
import threading

import pytest

import fake_engine  # noqa: F401 - finds evals

from endpoint import Client  # noqa: E402
from endpoint_config import Endpoint  # noqa: E402


class Server(http.server.ThreadingHTTPServer):
    """Answers with the words behind `say ` in a prompt, after `script` has been worked off: of each entry a status and a
    body, "hang", "close" or "cut". Words are tokens."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.requests, self.headers = [], [], []
        self.listing = []  # what /models answers first, likewise
        self.models, self.tokenizes, self.at_once, self.most_at_once = ["tiny"], True, 0, 0
        self.lock, self.end = threading.Lock(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_):
        pass  # clients that went away


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        listing = self.server.listing
        self.send(*(listing.pop(0) if listing else (200, {"data": [{"id": name} for name in self.server.models]})))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.requests.append((self.path, body))
            server.headers.append(dict(self.headers))
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
            step = server.script.pop(0) if server.script else None
        try:
            self.answer(body, step)
        finally:
            with server.lock:
                server.at_once -= 1

    def answer(self, body, step):
        if step == "hang":
            self.server.end.wait(20)
        elif step == "close":
            self.connection.shutdown(socket.SHUT_RDWR)
        elif step == "cut":
            self.send(200, {"choices": [{"text": "half"}]}, missing=5)
        elif step:
            self.send(*step)
        elif self.path == "/tokenize":
            found = {"tokens": body["prompt"].split()} if self.server.tokenizes else {"error": "no such page"}
            self.send(200 if self.server.tokenizes else 404, found)
        elif body["model"] not in self.server.models:
            self.send(404, {"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}})
        else:
            self.send(200, self.completion(body))

    def completion(self, body):
        chat = "messages" in body
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        words = prompt.rpartition("say ")[2].split()
        cut_off = len(words) > body["max_tokens"]
        text = " ".join(words[: body["max_tokens"]])
        choice = {"message": {"content": text}} if chat else {"text": text}
        choice["finish_reason"] = "length" if cut_off else "stop"
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(text.split())}
        return {"choices": [choice], "usage": usage, "model": body["model"]}

    def send(self, status, body, missing=0, headers=()):
        """Says that `missing` more bytes come than do; None: says nothing of how many."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        if missing is not None:
            self.send_header("Content-Length", str(len(data) + missing))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def server(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield made
        made.end.set()
        made.shutdown()
        thread.join()


def client_of(server, **settings):
    waits = []
    made = Client(Endpoint(**{"url": server.url, "model": "tiny", "timeout": 5, **settings}), sleep=waits.append)
    made.waits = waits
    return made
