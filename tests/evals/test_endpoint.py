"""The client of endpoints, against a small server of the tests' own."""

import contextlib
import socket
import threading
import time

import pytest

from endpoint_server import client_of

import endpoint  # noqa: E402
from endpoint import Client, EndpointError, Refused  # noqa: E402
from endpoint_config import Endpoint  # noqa: E402

KEY = "sk-secret"


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


@contextlib.contextmanager
def dripping(beginning):
    """The address of a server that says this, and then goes on in drops."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip():
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(beginning)
                for _ in range(60):
                    connection.sendall(b"1")
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


@pytest.mark.parametrize(
    ("beginning", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", "no answer in 0.4 s"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "no answer in 0.4 s"),
        (b"HTTP/1.1 200 OK\r\nX: ", "no answer in 0.4 s"),
        (b"HTTP/1.1 2", "no answer in 0.4 s"),
        (b"HTTP/1.1 500 Down\r\nContent-Length: 1000\r\n\r\n", "status 500: Down"),
    ],
)
def test_an_answer_that_comes_in_drops_is_too_late(beginning, message):
    with dripping(beginning) as url:
        started = time.monotonic()
        with pytest.raises(EndpointError, match=message):
            Client(Endpoint(url, "tiny", timeout=0.4, retries=0)).complete("say yes", 4)
        assert time.monotonic() - started < 1.5


@pytest.mark.parametrize(
    ("status", "header", "message"),
    [
        (302, ("Location", "http://[::1"), "status 302"),
        (200, ("Content-Length", "\u00b2"), None),
        (200, ("Content-Length", "9" * 5000), None),
        (500, ("Retry-After", "nan"), "status 500"),
        (500, ("Retry-After", "9" * 400), "status 500"),
    ],
)
def test_odd_headers_are_no_faults_of_the_program(server, status, header, message):
    server.script = [(status, {"choices": [{"text": "yes"}]}, None, [header])]
    client = client_of(server, retries=0)
    if message is None:
        assert client.complete("say yes", 4).text == "yes"
    else:
        with pytest.raises(EndpointError, match=message):
            client.complete("say yes", 4)


@pytest.mark.parametrize("count", [10**400, True, -1, 2.5, "7"])
def test_what_is_no_number_of_tokens_is_none(server, count):
    server.script = [(200, {"choices": [{"text": "yes"}], "usage": {"prompt_tokens": count, "completion_tokens": 1}})]
    answer = client_of(server).complete("say yes", 4)
    assert (answer.prompt_tokens, answer.new_tokens) == (None, 1)


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


@pytest.mark.parametrize(
    "step",
    [
        lambda said: (401, {"error": said}),
        lambda said: (503, said.encode()),
        lambda said: (200, said.encode()),
        lambda said: (200, {"choices": [{"text": "no", "finish_reason": said}]}),
    ],
)
def test_no_part_of_a_key_is_said_where_words_are_cut_off(server, monkeypatch, step):
    key = "k" * 40
    monkeypatch.setenv("TEST_KEY", key)
    for letters in range(endpoint.SHOWN_LETTERS - 50, endpoint.SHOWN_LETTERS, 5):
        server.script = [step("x" * letters + key)]
        with pytest.raises(EndpointError) as error:
            client_of(server, key_env="TEST_KEY", retries=0).complete("say yes", 4)
        assert "kk" not in str(error.value) and "xxx" in str(error.value)


@pytest.mark.parametrize("tokenizes", [True, False])
def test_tokens_are_counted_by_the_server(server, tokenizes):
    server.tokenizes = tokenizes
    client = client_of(server)
    assert [client.count_tokens("say it again"), client.count_tokens("again")] == [3, 1]
    assert [path for path, _ in server.requests].count("/tokenize") == (2 if tokenizes else 1)


@pytest.mark.parametrize(
    "reply", [(401, {}), (400, {"error": "no"}), (200, {"tokens": 3}), (200, b"<html>"), (200, []), (200, {})], ids=str
)
@pytest.mark.parametrize("chat", [True, False])
def test_without_a_list_of_tokens_usage_counts_them(server, reply, chat):
    server.script = [reply]
    client = client_of(server, chat=chat)
    assert [client.count_tokens("say it again"), client.count_tokens("again")] == [3, 1]
    counted = "/v1/chat/completions" if chat else "/v1/completions"
    assert [path for path, _ in server.requests] == ["/tokenize", counted, counted] and client.waits == []


def test_a_tokenizer_that_is_not_there_for_a_while_is_asked_again(server):
    server.script = [(503, {"error": "Loading model"})]
    assert client_of(server).count_tokens("say it again") == 3
    assert [path for path, _ in server.requests] == ["/tokenize", "/tokenize"]
