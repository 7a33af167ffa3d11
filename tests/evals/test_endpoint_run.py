"""A run of endpoints, against a small server of the tests' own."""

import contextlib
import json
import subprocess
import sys
import threading
import time

import pytest

from endpoint_server import Handler, client_of
from task_helpers import write_lines

import config  # noqa: E402
import endpoint_run  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
import task_list  # noqa: E402
from config import ConfigError, Task  # noqa: E402
from endpoint import EndpointError  # noqa: E402
from results import load_results  # noqa: E402
from sample import Sample  # noqa: E402


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


@pytest.mark.parametrize(("status", "rows"), [(401, 4), (404, 4), (400, 6)])
def test_a_key_that_expires_ends_the_run_and_samples_that_are_too_long_do_not(
    server, said, tmp_path, monkeypatch, status, rows
):
    monkeypatch.setattr(endpoint_run, "GIVE_UP_AFTER", 4)
    server.script = [None] * 7 + [(status, {"error": "no"})] * 6
    with pytest.raises(EndpointError, match="4 requests in a row") if rows == 4 else contextlib.nullcontext():
        make_run(tmp_path, tables_of(server, requests=1)).go()
    assert len(rows_of(tmp_path)) == rows


def test_a_server_that_lists_no_models_is_used_where_one_is_named(server, said, tmp_path):
    server.listing = [(500, {})] * 9
    make_run(tmp_path, tables_of(server)).go()
    assert len(rows_of(tmp_path)) == 6 and len(server.listing) == 9


def test_a_model_that_is_still_loading_is_waited_for(server, said, tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint_run.Client.__init__, "__defaults__", (lambda seconds: None,))
    server.listing = [(503, {"error": {"message": "Loading model"}})] * 2
    make_run(tmp_path, tables_of(server, model="", retries=2)).go()
    assert len(rows_of(tmp_path)) == 6


@pytest.mark.parametrize("listing", [(500, {}), (200, {"data": 3})])
def test_a_refusal_is_said_where_no_models_are_listed(server, said, tmp_path, listing):
    server.listing = [listing] * 9
    with pytest.raises(ConfigError, match="The model `huge` does not exist.$"):
        make_run(tmp_path, tables_of(server, model="huge")).go()
    assert len(server.listing) == 8


def test_what_an_answer_begins_with_is_counted_once_and_not_timed(server, said, tmp_path):
    tables = tables_of(server, ("said/begun",), chat=True, requests=1)
    original = Handler.answer

    def slow(self, body, step):
        time.sleep(0.3 if "The answer: " == body.get("content") else 0)
        original(self, body, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "answer", slow)
        make_run(tmp_path, tables).go()
    assert [body["content"] for path, body in server.requests if path == "/tokenize"].count("The answer: ") == 1
    assert max(row["seconds"] for row in rows_of(tmp_path)) < 0.3


def test_as_many_requests_at_once_as_are_allowed(server, said, tmp_path):
    server.script = [None] * 7 + [(200, {"choices": [{"text": "late"}]})] * 6
    original, all_there = Handler.send, threading.Barrier(3)

    def together(self, status, body, *rest):
        if b"late" in json.dumps(body).encode():
            all_there.wait(10)
        original(self, status, body, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "send", together)
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
        ({"url": "http://127.0.0.1:1/v1"}, "method 'one': http://127.0.0.1:1/v1/completions: .*refused"),
        ({"url": "http://127.0.0.1:1/v1", "model": ""}, "method 'one': http://127.0.0.1:1/v1/models: .*refused"),
        ({"url": "http://a..b/v1"}, "method 'one': http://a..b/v1/completions: .*label"),
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
        ({"endpoint": {"url": "ftp://me:secret@host/v1"}}, "name it in key_env"),
        ({"endpoint": {"url": "http://me:se/secret@host/v1"}}, "url is not as http://"),
        ({"endpoint": {"url": "http://me:secret@host:port/v1"}}, "url is not as http://"),
        ({"endpoint": "http://me:secret@host/v1"}, "endpoint: expected a table of settings, got a text"),
        ({"endpoint": {"url": "http://host/v1?key=secret"}}, "url is none that can be used; .*without a query"),
        ({"endpoint": {"url": "http://host/v1", "key_env": "sk-secret"}}, "key_env is no name of an environment variable"),
        ({"model": "a.gguf"}, r"write a server's into \[endpoint\], or into its method"),
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
    with pytest.raises(ConfigError, match=message) as error:
        make_run(tmp_path, tables)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("methods", ["method = 3", "[[method]]\nurl = 'http://host/v1'"])
def test_methods_without_names_are_said_where_one_is_chosen(tmp_path, methods):
    path = tmp_path / "eval.toml"
    path.write_text(f'{methods}\n[[task]]\nname = "retrieval/passkey"\n')
    argv = ["--config", str(path), "--method", "one"]
    with pytest.raises(ConfigError, match=r"no methods by name; write \[method.locks\]"):
        run.prepare(run.parse(argv), argv)


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
