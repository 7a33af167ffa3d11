"""The client and a run of endpoints, against a small server of the test's own."""

import contextlib
import http.server
import json
import socket
import subprocess
import sys
import threading
import time

import pytest

import fake_engine  # noqa: F401 - finds evals
from task_helpers import write_lines

import config  # noqa: E402
import endpoint  # noqa: E402
import endpoint_run  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
import task_list  # noqa: E402
from config import ConfigError, Task  # noqa: E402
from endpoint import Client, EndpointError, Refused  # noqa: E402
from endpoint_config import Endpoint  # noqa: E402
from results import load_results  # noqa: E402
from sample import Sample  # noqa: E402

KEY = "sk-secret"


class Server(http.server.ThreadingHTTPServer):
    """Answers with the words behind `say ` in a prompt, after `script` has been worked off: of each entry a status and a
    body, "hang", "close" or "cut". Words are tokens."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.requests, self.headers = [], [], []
        self.models, self.tokenizes, self.at_once, self.most_at_once = ["tiny"], True, 0, 0
        self.lock, self.end = threading.Lock(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_):
        pass  # clients that went away


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send(200, {"data": [{"id": name} for name in self.server.models]})

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
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) + missing))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server():
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


def test_completions_and_chat_carry_what_is_asked(server):
    client = client_of(server, extra={"top_k": 3})
    answer = client.complete("please say one two three", 2, temperature=0)
    assert (answer.text, answer.cut_off, answer.prompt_tokens, answer.new_tokens) == ("one two", True, 5, 2)
    assert answer.model == "tiny"
    whole = client.chat("say one", 2, temperature=0)
    assert (whole.text, whole.cut_off) == ("one", False)
    common = {"model": "tiny", "max_tokens": 2, "temperature": 0, "top_k": 3}
    assert server.requests == [
        ("/v1/completions", {"prompt": "please say one two three", **common}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "say one"}], **common}),
    ]


@pytest.mark.parametrize(
    "step",
    [
        (500, {"error": {"message": "busy"}}),
        (503, b"<html>loading</html>"),
        (429, {"error": "slow down"}),
        (200, b'{"choices": [{"text": "ha'),
        (200, {"error": {"message": "overloaded"}}),
        (200, {"choices": []}),
        (200, {"choices": [{"text": None, "finish_reason": "stop"}]}),
        (200, b"[]"),
        (200, b"[" * 100000),
        "close",
        "cut",
    ],
    ids=lambda step: str(step)[:40],
)
def test_what_may_pass_is_tried_again(server, step):
    server.script = [step, step]
    client = client_of(server, retries=2)
    assert client.complete("say yes", 4).text == "yes"
    assert client.waits == [1, 2] and len(server.requests) == 3
    server.script = [step] * 3
    with pytest.raises(EndpointError, match="completions: .*after 3 tries") as error:
        client.complete("say yes", 4)
    assert not isinstance(error.value, Refused)


def test_a_server_may_say_how_long_to_wait(server):
    server.script = [(429, {}, 0, [("Retry-After", "7")]), (503, {}, 0, [("Retry-After", "5000")])]
    client = client_of(server)
    assert client.complete("say yes", 4).text == "yes" and client.waits == [7, endpoint.MAX_WAIT]


def test_a_time_out_is_tried_again_and_then_said(server):
    server.script = ["hang"]
    client = client_of(server, timeout=0.3, retries=1)
    assert client.complete("say yes", 4).text == "yes"
    server.script = ["hang", "hang"]
    with pytest.raises(EndpointError, match="no answer in 0.3 s, after 2 tries"):
        client.complete("say yes", 4)


def test_an_answer_that_comes_in_drops_is_too_late():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip():
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(100):
                    connection.sendall(b" ")
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match="no answer in 0.4 s"):
            Client(Endpoint(url, "tiny", timeout=0.4, retries=0)).complete("say yes", 4)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, {"error": {"message": "This model has 4096 tokens."}}, "status 400: This model has 4096 tokens."),
        (400, {"object": "error", "message": "too long"}, "status 400: too long"),
        (401, b"", "status 401: Unauthorized"),
        (422, {"detail": [{"loc": "body"}]}, "status 422: .*loc"),
        (302, b"", "status 302"),  # to another address goes no key
    ],
)
def test_what_a_server_refuses_is_said_once_in_its_words(server, status, body, message):
    server.script = [(status, body, 0, [("Location", f"{server.url}/models")])]
    with pytest.raises(Refused, match=message):
        client_of(server).complete("say yes", 4)
    assert len(server.requests) == 1


def test_an_answer_that_was_stopped_from_outside_is_none(server):
    server.script = [(200, {"choices": [{"text": "no", "finish_reason": "content_filter"}]})]
    with pytest.raises(Refused, match="ended by 'content_filter'"):
        client_of(server).complete("say yes", 4)


def test_thinking_that_filled_the_room_is_an_empty_answer(server):
    server.script = [(200, {"choices": [{"message": {"content": None}, "finish_reason": "length"}]})]
    answer = client_of(server).chat("say yes", 4)
    assert (answer.text, answer.cut_off, answer.new_tokens) == ("", True, None)


def test_a_key_is_sent_and_never_said(server, monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    server.script = [(401, {"error": f"wrong key {KEY}"}), (500, {"error": f"wrong key {KEY}"})]
    client = client_of(server, key_env="TEST_KEY", retries=0)
    for _ in range(2):
        with pytest.raises(EndpointError, match=r"wrong key \*\*\*") as error:
            client.complete("say yes", 4)
        assert KEY not in str(error.value)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    client_of(server).complete("say yes", 4)
    assert "Authorization" not in server.headers[-1]


@pytest.mark.parametrize("tokenizes", [True, False])
def test_tokens_are_counted_by_the_server(server, tokenizes):
    server.tokenizes = tokenizes
    client = client_of(server)
    assert [client.count_tokens("say it again"), client.count_tokens("again")] == [3, 1]
    assert [path for path, _ in server.requests].count("/tokenize") == (2 if tokenizes else 1)


# Runs.


class Said:
    """A source of tasks whose right answer is what the server is told to say; every third sample tells it something else."""

    TASKS = ("said", "plain", "begun")

    @staticmethod
    def generate(task, tokens, count, seed, count_tokens):
        for index in range(count):
            said = "wrong" if index % 3 == 2 else f"answer{index}"
            begin = "The answer: " if task == "begun" else ""
            details = {"chat": False} if task == "plain" else {}
            question = f"say {begin}{said} now"
            size = count_tokens(f"{seed} words")
            yield Sample(f"said/{task}", index, "context ", question, (f"answer{index}",), 1 + size, begin, details=details)


@pytest.fixture
def said(monkeypatch):
    found = {f"said/{name}": (Said, name) for name in Said.TASKS}
    monkeypatch.setattr(task_list, "sources", lambda: found)
    monkeypatch.setattr(
        endpoint_run.scoring, "score", lambda sample, answer: answer.split()[:1] == [sample.answers[0]], raising=True
    )


def tables_of(server, tasks=("said/said",), methods=None, **changes):
    return {
        "progress": False,
        "endpoint": {"url": server.url, "model": "tiny", "timeout": 5, "retries": 0, **changes},
        "task": [{"name": name, "count": 6, "tokens": 100} for name in tasks],
        "method": methods or {"one": {}},
    }


def make_run(folder, tables, said=None):
    parsed = config.parse(tables, {"out": str(folder / "out")})
    task_list.check(parsed.tasks, parsed.endpoints)
    return endpoint_run.EndpointRun(parsed, "a command", said.append if said is not None else lambda line: None)


def rows_of(folder):
    return sorted(load_results(folder / "out" / "results.jsonl"), key=lambda row: (row["task"], row["method"], row["index"]))


def test_a_run_scores_every_sample_and_shows_it(server, said, tmp_path):
    lines = []
    tables = tables_of(server, methods={"one": {}, "two": {"chat": True, "requests": 1}})
    make_run(tmp_path, tables, lines).go()
    rows = rows_of(tmp_path)
    assert [row["score"] for row in rows] == [1, 1, 0, 1, 1, 0] * 2
    assert rows[0]["prediction"] == "answer0 now" and rows[0]["new_tokens"] == 2 and rows[0]["cut_off"] is False
    assert rows[0]["prompt_tokens"] == 4 and rows[0]["seconds"] > 0
    text = report.write(tmp_path / "out")
    assert f"one: tiny at {server.url}" in lines and "| two | 0.667 |" in text and "two: `http" in text
    asked = len(server.requests)
    make_run(tmp_path, tables).go()
    assert not [path for path, body in server.requests[asked:] if "say" in str(body)]


def test_failures_are_recorded_count_for_nothing_and_are_tried_again(server, said, tmp_path):
    run_of_all = make_run(tmp_path, tables_of(server, requests=1))
    # The check, the count of tokens for each sample, and the samples.
    server.script = [None] * 7 + [(500, {}), (400, {"error": "too long"}), (200, b"{"), None, None, None]
    run_of_all.go()
    rows = rows_of(tmp_path)
    assert [row.get("score") for row in rows] == [None, None, None, 1, 1, 0]
    assert "status 500" in rows[0]["failed"] and "Refused" in rows[1]["failed"] and "too long" in rows[1]["failed"]
    assert "not an answer" in rows[2]["failed"]
    text = report.write(tmp_path / "out")
    assert "3 failed and count for nothing" in text and "3 (3 failed)" in text and "| one | 0.667 |" in text
    run_of_all.go()
    text = report.write(tmp_path / "out")
    assert len(rows_of(tmp_path)) == 9 and "failed" not in text and "| one | 0.667 | 0.333 to 1.000 |" in text


def test_a_server_that_went_away_ends_the_run(server, said, tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint_run, "GIVE_UP_AFTER", 4)
    server.script = [None] * 7 + [(500, {})] * 6
    with pytest.raises(EndpointError, match="4 requests in a row got no answer; the last: .*status 500.*goes on"):
        make_run(tmp_path, tables_of(server, requests=1)).go()
    assert len(rows_of(tmp_path)) == 4


def test_as_many_requests_at_once_as_are_allowed(server, said, tmp_path):
    server.script = [None] * 7 + [(200, {"choices": [{"text": "late"}]})] * 6
    original = Handler.send

    def slow(self, status, body, *rest):
        time.sleep(0.1 if b"late" in json.dumps(body).encode() else 0)
        original(self, status, body, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "send", slow)
        make_run(tmp_path, tables_of(server, requests=3)).go()
    assert server.most_at_once == 3


def test_text_around_prompts_and_sets_without_a_chat_template(server, said, tmp_path):
    tables = {**tables_of(server, ("said/said", "said/plain", "said/begun")), "before": "<user>", "after": "<model>"}
    tables["method"] = {"text": {}, "chat": {"chat": True}}
    make_run(tmp_path, tables).go()
    sent = {}
    for path, body in server.requests:
        if "answer0" in str(body):
            sent.setdefault(path, []).append(body.get("prompt") or body["messages"][0]["content"])
    assert sent["/v1/completions"] == [
        "<user>context say answer0 now<model>",
        "context say answer0 now",
        "<user>context say The answer: answer0 now<model>The answer: ",
        "context say answer0 now",
    ]
    assert sent["/v1/chat/completions"] == ["context say answer0 now", "context say The answer: answer0 nowThe answer: "]
    begun = [row for row in rows_of(tmp_path) if row["name"] == "said/begun" and row["method"] == "chat"]
    room = {body["max_tokens"] for path, body in server.requests if "chat" in path and "The answer" in str(body)}
    assert room == {3 + 2}  # for the words and for what the answer begins with
    assert begun[0]["prediction"].split()[0] == "answer0" and begun[0]["score"] == 1


def test_several_answers_to_a_problem_have_seeds_of_their_own(server, tmp_path):
    path = write_lines(
        tmp_path / "aime.jsonl", {"problem": "say \\boxed{7}", "answer": 7}, {"problem": "say 8", "answer": 8}
    )
    tables = tables_of(server)
    sampled = {"temperature": 0.6, "top_p": 0.95, "repeats": 3, "new_tokens": 1}
    tables["task"] = [{"name": "math/aime", "data": str(path), "count": 2, **sampled}]
    make_run(tmp_path, tables).go()
    asked = [body for path, body in server.requests if "say" in str(body)]
    assert len(asked) == 6 and len({body["seed"] for body in asked}) == 6
    assert {(body["temperature"], body["top_p"], body["max_tokens"]) for body in asked} == {(0.6, 0.95, 1)}
    text = report.write(tmp_path / "out")
    assert "avg@3" in text and "| one | 0.500 | 1 | 100.0 |" in text


def test_an_answer_over_an_endpoint_is_cut_at_its_stop(server):
    server.script = [(200, {"choices": [{"text": "\none\nDialogue:"}]})]
    sample = Sample("longbench/samsum", 0, "c", "q", ("one",), 8, details={"chat": False, "stop": "\n"})
    answer = endpoint_run.ask_for(client_of(server), Task(sample.task, 0, 1), sample, config.Config((), {}))
    assert answer.text == "\none" and "stop" not in server.requests[0][1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "huge"}, "method 'one': .*The model `huge` does not exist.; the server has tiny"),
        ({"url": "http://127.0.0.1:1/v1"}, "method 'one': http://127.0.0.1:1/v1/models: .*refused"),
        ({"url": "http://a..b/v1"}, "method 'one': http://a..b/v1/models: .*label"),
    ],
)
def test_a_wrong_model_or_server_is_said_before_the_run(server, said, tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_run(tmp_path, tables_of(server, **settings)).go()
    assert not (tmp_path / "out").exists()


def test_a_model_need_not_be_named_where_there_is_one(server, said, tmp_path):
    tables = tables_of(server, model="")
    make_run(tmp_path, tables).go()
    assert json.loads((tmp_path / "out" / "run.json").read_text())["identity"]["config"]["methods"]["one"]["model"] == "tiny"
    server.models = ["tiny", "huge"]
    with pytest.raises(ConfigError, match="model is missing, and the server has tiny, huge"):
        make_run(tmp_path, tables).go()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"endpoint": {"url": "localhost:8000"}}, "url is 'localhost:8000'; expected one as http://"),
        ({"endpoint": {"url": "http://me:secret@host/v1"}}, "name it in key_env"),
        ({"endpoint": {"url": "http://host:port/v1"}}, "Port could not be cast"),
        ({"endpoint": {}}, "method 'one': url is missing"),
        ({"endpoint": {"url": "http://host/v1", "retrys": 1}}, "did you mean 'retries'"),
        ({"endpoint": {"url": "http://host/v1", "timeout": True}}, "timeout is True; expected a number"),
        ({"endpoint": {"url": "http://host/v1", "timeout": float("nan")}}, "timeout is nan; it may be"),
        ({"endpoint": {"url": "http://host/v1", "requests": 0}}, "requests is 0; it may be 1 to"),
        ({"endpoint": {"url": "http://host/v1", "extra": {"n": 2}}}, "extra has 'n'"),
        ({"endpoint": {"url": "http://host/v1", "key_env": "NO_SUCH_KEY"}}, "NO_SUCH_KEY, which key_env names, is not set"),
        ({"threads": 2}, "threads is for llama.cpp, and these methods are endpoints"),
        ({"method": {"one": {"budget_tokens": 256}}}, "method 'one': unknown key 'budget_tokens'. Known: url"),
        ({"task": [{"name": "kl"}]}, "task 'kl' compares the distributions of next tokens"),
    ],
)
def test_bad_settings_are_named(tmp_path, said, changes, message):
    tables = {"endpoint": {"url": "http://host/v1"}, "task": [{"name": "said/said"}], "method": {"one": {}}, **changes}
    with pytest.raises(ConfigError, match=message):
        make_run(tmp_path, tables)


def test_the_command_line_runs_endpoints_without_a_model(server, tmp_path):
    path = tmp_path / "eval.toml"
    path.write_text(
        f'out = "{tmp_path / "out"}"\n[[task]]\nname = "retrieval/passkey"\ntokens = 300\n'
        f'[method.tiny]\nurl = "{server.url}"\n'
    )
    command = [sys.executable, run.__file__, "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "| tiny | 0.000 |" in done.stdout, done.stderr
    refused = subprocess.run([*command, "--threads", "2"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and refused.stderr.startswith("eval: threads is for llama.cpp")
