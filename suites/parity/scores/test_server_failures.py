"""A server that fails in each way a server can: what passes is waited out, the rest is one line
and `unknown`, never a pass.
"""

from __future__ import annotations

import gc
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.score
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")
pytest.importorskip("aiohttp", reason="aiohttp is missing: pip install 'cachewitness[score]'")

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.engines import retries
from cachewitness.engines.answers import Ask, BackendError, Opening
from cachewitness.parity.scores import completion, tasks
from cachewitness.parity.scores import server as server_module
from cachewitness.parity.scores.context import Context
from cachewitness.parity.scores.remote import RemoteBackend
from cachewitness.parity.scores.server import LocalServer
from suites.support.stub_backend import Stub, knowing

PROBLEMS = tasks.problems(limit=24)
Fault = Callable[[Any, int], bool]
"""Does something to a request's handler, given the number of the request; returns whether that was
its answer."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(retries, "WAIT_S", 0.01)
    yield


def plant(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> list[float]:
    """Let completions meet a fault; return the times at which they came, as it grows."""
    plain = server_module._Handler._json
    came = list[float]()
    lock = threading.Lock()

    def faulty(handler: Any, code: int, content: Any) -> None:
        if handler.path != "/v1/completions":
            return plain(handler, code, content)
        with lock:
            came.append(time.monotonic())
            number = len(came)
        return None if fault(handler, number) else plain(handler, code, content)

    monkeypatch.setattr(server_module._Handler, "_json", faulty)
    return came


def score(
    capsys: pytest.CaptureFixture[str], *argv: str, stub: Stub | None = None
) -> tuple[int, str, str]:
    with LocalServer(stub or Stub(knowing(PROBLEMS), Opening())) as local:
        url = ["--base-url", local.url, "--limit", "24", "--bit-exact", "--concurrent", "4"]
        code = invoke(["score", *url, "--arms", "off,hit", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def cut(handler: Any) -> None:
    """Break the connection so that the other side hears of it at once."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.close()


def reset_in_the_body(handler: Any, number: int) -> bool:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"te')
    cut(handler)
    return True


def sent(status: int, body: bytes, **headers: str) -> Fault:
    def fault(handler: Any, number: int) -> bool:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True

    return fault


def reset_at_once(handler: Any, number: int) -> bool:
    cut(handler)
    return True


def now_and_then(fault: Fault) -> Fault:
    """Return a fault that two requests meet, so that the third attempt is answered even if both
    are the same question's.
    """
    return lambda handler, number: number in (5, 12) and fault(handler, number)


def silently_closed(handler: Any, number: int) -> bool:
    """Close the connection behind an answer that did not say so."""
    handler.close_connection = True
    return False


def slow(handler: Any, number: int) -> bool:
    time.sleep(0.02)
    return False


PASSING: dict[str, Fault] = {
    "resets in the body": now_and_then(reset_in_the_body),
    "resets at once": now_and_then(reset_at_once),
    "500, then well": now_and_then(sent(500, b"oops")),
    "503, then well": now_and_then(sent(503, b"")),
    "429, come back at once": now_and_then(sent(429, b"{}", Retry_After="0")),
    "closes connections without a word": silently_closed,
    "is slow": slow,
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_what_passes_is_waited_out_and_changes_no_verdict(
    fault: Fault, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a repeated request of a cold arm find what its first attempt left in the cache."""
    plant(monkeypatch, fault)
    code, out, err = score(capsys, "--json")
    whole = json.loads(out)
    assert (code, err) == (0, "") and all(entry["questions"] == 24 for entry in whole["arms"])
    assert whole["arms"][0]["restored"]["tokens"] == 0


LASTING: dict[str, tuple[Fault, str]] = {
    "resets in the body": (reset_in_the_body, "does not answer"),
    "resets at once": (reset_at_once, "does not answer"),
    "500": (
        sent(500, b'{"error": {"message": "out of\\nmemory"}}'),
        "the server answered 500: out of memory",
    ),
    "429 for an hour": (sent(429, b"busy", Retry_After="3600"), "the server answered 429: busy"),
    "404": (sent(404, b""), "the server answered 404: nothing"),
    "a body with controls": (sent(403, b"\x1b[31mno\x07"), "the server answered 403: ?[31mno?"),
    "too long": (
        sent(400, b'{"error": {"message": "This model\'s maximum context length is 64 tokens."}}'),
        "the server answered 400: This model's maximum context length is 64 tokens.",
    ),
    "no JSON": (sent(200, b"<html>"), "answered 200, but its body is no JSON"),
    "JSON of another kind": (sent(200, b"[1]"), "answered 200 but its body is no completion"),
    "two choices": (
        sent(200, b'{"choices": [{"text": "a"}, {"text": "b"}]}'),
        "answered 200 with 2 choices, not 1",
    ),
    "a text that is none": (sent(200, b'{"choices": [{"text": 7}]}'), "its body is no completion"),
}


@pytest.mark.parametrize(("fault", "message"), LASTING.values(), ids=LASTING.keys())
def test_what_does_not_pass_is_one_line_and_unknown(
    fault: Fault,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From the sixth completion on; what was answered before is kept."""
    plant(monkeypatch, lambda handler, number: number > 5 and fault(handler, number))
    code, out, err = score(capsys)
    gc.collect()  # asyncio tells of a failure that nobody waited for when its task is collected
    assert not [record.message for record in caplog.records if record.name == "asyncio"]
    assert code == 2 and err.count("\n") == 1 and message in err and "verdict" not in out
    assert "\x1b" not in err and "what was answered is kept" in err
    (kept,) = Path(".cachewitness/score").glob("*/answers-off.jsonl")
    assert 3 <= len(kept.read_bytes().splitlines()) <= 6, (
        "at most three were under way beside the one that failed"
    )


def test_a_server_that_hangs_is_given_up_after_the_time_that_was_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def hang(handler: Any, number: int) -> bool:
        return number > 5 and over.wait(60) and False

    plant(monkeypatch, hang)
    begun = time.monotonic()
    stub = Stub(knowing(PROBLEMS), Opening())
    with LocalServer(stub) as local:
        code = invoke(
            [
                "score",
                "--base-url",
                local.url,
                "--limit",
                "24",
                "--arms",
                "off,hit",
                "--timeout",
                "1",
            ]
        )
        over.set()
    err = capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1 and "does not answer within 1 s" in err
    assert time.monotonic() - begun < 50


def test_a_server_that_is_gone_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port is closed in the middle of the run."""

    def gone(handler: Any, number: int) -> bool:
        if number > 5:
            handler.server.socket.close()
            cut(handler)
        return number > 5

    plant(monkeypatch, gone)
    stub = Stub(knowing(PROBLEMS), Opening())
    local = LocalServer(stub)
    local._thread.start()
    code = invoke(
        [
            "score",
            "--base-url",
            local.url,
            "--limit",
            "24",
            "--arms",
            "off,hit",
            "--concurrent",
            "1",
        ]
    )
    err = capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1 and "does not answer" in err


@pytest.mark.parametrize("concurrent", [1, 3])
def test_so_many_requests_are_under_way_as_were_asked_for(
    concurrent: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()
    now = 0
    most = 0
    plain = LocalServer.completion

    def counted(self: LocalServer, content: bytes) -> dict[str, Any]:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        try:
            return plain(self, content)
        finally:
            with lock:
                now -= 1

    monkeypatch.setattr(LocalServer, "completion", counted)
    code, _, _ = score(capsys, "--concurrent", str(concurrent))
    assert code == 0 and most == concurrent


def test_attempts_end_and_wait_longer_each_time() -> None:
    assert [retries.wait_s(attempt, 500) for attempt in (1, 2, 3)] == [
        retries.WAIT_S,
        2 * retries.WAIT_S,
        None,
    ]
    assert retries.wait_s(1, 400) is None and retries.wait_s(1, 200) is None
    assert retries.wait_s(9, 429, "7") == 7 and retries.wait_s(10, 429, "7") is None
    assert (
        retries.wait_s(1, 429, "61") is None
        and retries.wait_s(1, 429, "Wed, 21 Oct 2015 07:28:00 GMT") == retries.WAIT_S
    )


def test_one_request_of_the_backend_is_repeated_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """What warms the cache goes another way than what is scored."""
    came = plant(
        monkeypatch, lambda handler, number: number == 1 and sent(500, b"oops")(handler, number)
    )
    with LocalServer(Stub({}, Opening())) as local:
        assert (
            len(RemoteBackend(local.url, "toy").answer([Ask("0", "a b c")])) == 1 and len(came) == 2
        )
        with pytest.raises(
            BackendError, match="question 1: the server answered 400: prompt is empty"
        ):
            RemoteBackend(local.url, "toy").answer([Ask("1", "")])


# --- what a server offers beside texts ------------------------------------------------------------


def chosen(
    *tops: dict[str, float | None], tokens: tuple[str, ...] = ("token_id:5", "token_id:7")
) -> dict[str, Any]:
    return {
        "choices": [{"text": "x", "logprobs": {"tokens": list(tokens), "top_logprobs": list(tops)}}]
    }


def test_tokens_and_margins_are_read_of_logprobs() -> None:
    body = chosen({"token_id:5": -0.25, "token_id:6": -1.75}, {"token_id:7": -0.5})
    answer = completion.read(body, "0")
    assert answer.tokens == (5, 7) and answer.margins == (1.5, 1e9)


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"text": "x"}]},
        {"choices": [{"text": "x", "logprobs": None}]},
        chosen({"a": -0.25}, {"b": -0.5}, tokens=("a", "b")),
    ],
    ids=["none", "null", "by their text"],
)
def test_tokens_that_a_server_does_not_number_are_not_compared(body: dict[str, Any]) -> None:
    answer = completion.read(body, "0")
    assert (answer.text, answer.tokens, answer.margins) == ("x", (), ())


def test_a_server_that_refuses_to_tell_tokens_is_asked_without(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LocalServer.completion
    refused = 0

    def strict(self: LocalServer, content: bytes) -> dict[str, Any]:
        nonlocal refused
        if "logprobs" in json.loads(content):
            refused += 1
            raise server_module.Refused(400, "logprobs: no such field")
        return plain(self, content)

    monkeypatch.setattr(LocalServer, "completion", strict)
    code, _, err = score(capsys)
    assert (code, err) == (0, "") and 1 <= refused <= 4, "once for each request that was under way"


class Tokenizer:
    """Answers `/tokenize` with a token for each word."""

    def __init__(self, offered: bool = True) -> None:
        self.offered = offered
        self.asked = 0

    def __call__(self, path: str, body: Any, what: str) -> Any:
        self.asked += 1
        if not self.offered:
            raise BackendError("tokenize: the server answered 404: Not Found")
        return {"count": 1, "tokens": [len(word) for word in body["prompt"].split()]}


def test_a_prompt_that_leaves_no_room_for_its_answer_is_refused_before_the_run() -> None:
    """As vLLM refuses it: the tokens that an answer may have count."""
    context = Context(Tokenizer(), "toy", 8, 2)
    context.prepare([Ask("0", "a bb ccc", max_tokens=5)])
    assert context.prompt(Ask("0", "a bb ccc")) == [1, 2, 3]
    with pytest.raises(
        UsageError,
        match=r"question 1: its prompt has 4 tokens and its answer may have 5, .* is 8 long",
    ):
        context.prepare([Ask("1", "a bb ccc d", max_tokens=5)])


def test_a_server_that_does_not_tokenize_gets_texts() -> None:
    post = Tokenizer(offered=False)
    context = Context(post, "toy", 1, 2)
    context.prepare([Ask(str(i), f"{i} b") for i in range(5)])
    assert context.prompt(Ask("0", "0 b")) == "0 b" and post.asked == 1


def tokenizing(monkeypatch: pytest.MonkeyPatch, limit: int) -> list[Any]:
    """Let the server tell its context and the tokens of a text, one for each character; return
    the prompts that are sent.
    """
    plain_answer = server_module._Handler._answered
    plain_json = server_module._Handler._json
    plain_completion = LocalServer.completion
    sent_prompts = list[Any]()

    def answered(handler: Any) -> dict[str, Any]:
        if handler.path == "/tokenize":
            return {
                "tokens": [ord(character) for character in json.loads(handler._content())["prompt"]]
            }
        return plain_answer(handler)

    def answer_json(handler: Any, status: int, content: Any) -> None:
        if handler.path == "/v1/models":
            content["data"][0]["max_model_len"] = limit
        plain_json(handler, status, content)

    def completion(server: LocalServer, content: bytes) -> dict[str, Any]:
        body = json.loads(content)
        sent_prompts.append(body["prompt"])
        text = (
            body["prompt"] if isinstance(body["prompt"], str) else "".join(map(chr, body["prompt"]))
        )
        return plain_completion(server, json.dumps(body | {"prompt": text}).encode())

    monkeypatch.setattr(server_module._Handler, "_answered", answered)
    monkeypatch.setattr(server_module._Handler, "_json", answer_json)
    monkeypatch.setattr(LocalServer, "completion", completion)
    return sent_prompts


def test_a_server_that_tokenizes_is_sent_ids(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    came = tokenizing(monkeypatch, limit=100_000)
    code, _, err = score(capsys)
    assert (code, err) == (0, "")
    assert sum(not isinstance(prompt, str) for prompt in came) == 2 * 24, (
        "prefixes that are asked first, uncounted, are texts"
    )


def test_a_context_that_is_too_short_is_one_line_before_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    came = tokenizing(monkeypatch, limit=100)
    code, out, err = score(capsys)
    assert (
        code == 4
        and err.count("\n") == 1
        and "the server's context is 100 long" in err
        and "verdict" not in out
    )
    assert came == []
