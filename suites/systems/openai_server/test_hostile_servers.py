"""A server that dies, hangs, lies or speaks otherwise gets a verdict or one line, with its exit
code, in time.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.trace_format import Level, Submit, Trace
from cachewitness.engines import retries
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.report import terminal
from cachewitness.report.summary import Report
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.openai_server import engine as openai_engine
from cachewitness.systems.openai_server import request
from cachewitness.systems.openai_server.address import Address
from cachewitness.workloads.answer_stories import write
from cachewitness.workloads.configurations import Configuration
from suites.support.openai_double import BLOCK, Double

Fault = Callable[[Any], None]
"""Does something to a request's handler instead of answering."""
ASKED_FIRST = 5
"""Completions that a lawful server is asked before the first trace."""
KEY = "sk-very-secret-7"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(openai_engine, "_KNOWN", {})
    monkeypatch.setattr(retries, "WAIT_S", 0.01)
    monkeypatch.setenv("DOUBLES_KEY", KEY)
    yield


def spec_of(double: Double, **options: str) -> EngineSpec:
    usual = {
        "url": double.url,
        "block": str(BLOCK),
        "vocabulary": "89",
        "dtype": "float32",
        "key": "DOUBLES_KEY",
    }
    return parse(
        "openai-server:" + ",".join(f"{name}={value}" for name, value in (usual | options).items())
    )


def run(spec: EngineSpec, *stories: str) -> Report:
    """Run some stories, or two."""

    def traces(configuration: Configuration, level: Level, seed: int) -> Iterator[Trace]:
        return (
            write(configuration.shape(level), name, seed)
            for name in stories or ("single-tokens", "siblings")
        )

    suite = replace(next(suite for suite in SUITES if suite.level == "answers"), traces=traces)
    assert spec.kind.answers_level is not None
    level = replace(spec.kind.answers_level, shrinking=1)
    spec = replace(spec, kind=replace(spec.kind, controls=None, answers_level=level))
    return Runner(spec, spec.configurations).run([suite])


def meets(fault: Fault, after: int = ASKED_FIRST, last: int = 10**9) -> Any:
    """Let completions behind the so-manieth meet a fault, up to another."""

    def met(handler: Any, number: int) -> bool:
        if after < number <= last:
            with suppress(OSError):
                fault(handler)
        return after < number <= last

    return met


def cut(handler: Any) -> None:
    """Break the connection so that the other side hears of it at once."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.close()


def sent(status: int, content: Any, **headers: str) -> Fault:
    return lambda handler: handler.send(status, content, **headers)


def begun(content: bytes, then: Fault, kind: str = "text/event-stream", length: int = 0) -> Fault:
    """Return a fault that begins an answer."""

    def fault(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        if length:
            handler.send_header("Content-Length", str(length))
        handler.end_headers()
        handler.wfile.write(content)
        handler.wfile.flush()
        then(handler)

    return fault


def part(text: str = "x", **fields: Any) -> bytes:
    chosen = {"tokens": ["token_id:1"], "token_logprobs": [-0.5]}
    usual = {
        "model": "toy",
        "choices": [{"index": 0, "text": text, "logprobs": chosen, "finish_reason": "length"}],
    }
    return b"data: " + json.dumps(usual | fields).encode() + b"\n\n"


def choice(**fields: Any) -> list[dict[str, Any]]:
    return [{"index": 0, "finish_reason": "length", "logprobs": None} | fields]


def nothing(handler: Any) -> None:
    """Do nothing more."""


SCREAM = sent(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
UNREADABLE: dict[str, tuple[Fault, str]] = {
    "garbage": (sent(200, b"<html>\xff"), "sends what is no completion (it is no JSON)"),
    "garbage in a stream": (
        begun(b"data: {\n\n", nothing),
        "sends what is no completion (it is no JSON)",
    ),
    "JSON of another kind": (sent(200, [1]), "sends what is no completion (Expected `object`"),
    "deep JSON": (sent(200, b"[" * 100_000), "sends what is no completion"),
    "a huge number": (
        begun(b'data: {"choices":[],"usage":{"prompt_tokens":1e999}}\n\n', nothing),
        "no completion",
    ),
    "10 MB": (sent(200, b'{"x": "' + b"a" * 10_000_000 + b'"}'), "sends more than 8,388,608 bytes"),
    "10 MB in a stream": (
        begun((b"data: " + b" " * 100_000 + b"{}\n") * 100, nothing),
        "sends more than 8,388,608 bytes",
    ),
    "one line of 10 MB": (begun(b"data: {" + b" " * 10_000_000, nothing), "no completion"),
    "no logprobs": (
        begun(part(choices=choice()), nothing),
        "tells no token of its answer; `logprobs`",
    ),
    "tokens by text": (
        begun(part(choices=choice(logprobs={"tokens": ["a"], "token_logprobs": [0]})), nothing),
        "by their text",
    ),
    "uneven logprobs": (
        begun(part(choices=choice(logprobs={"tokens": ["token_id:1"]})), nothing),
        "0 logprobs for 1 tokens",
    ),
    "two answers": (begun(part(choices=choice() * 2), nothing), "sends several answers"),
    "another model": (begun(part(model="other"), nothing), "answers as other, and toy was asked"),
    "too many tokens": (begun(part() * 40, nothing), "40 tokens - at `$.tokens`"),
    "a redirection": (
        sent(308, b"", Location="https://elsewhere.example/v1"),
        "answers 308: go to https://elsewhere.example",
    ),
    "a redirection by GET": (
        sent(302, b"", Location="http://127.0.0.1:1/"),
        "answers 302: go to http://127.0.0.1:1/",
    ),
    "the key in its words": (SCREAM, "answers 401: Incorrect API key provided: (key)"),
    "429 for an hour": (sent(429, b"busy", Retry_After="3600"), "answers 429: busy"),
    "429 without end": (sent(429, b"busy"), "answers 429: busy"),
    "503": (sent(503, b"\x1b[31mno"), "answers 503: ?[31mno"),
    "404": (sent(404, b""), "answers 404: nothing"),
}
FAILING: dict[str, tuple[Fault, str]] = {
    "500": (sent(500, {"error": {"message": "out of\nmemory"}}), "answers 500: out of memory"),
    "502": (sent(502, b"bad gateway"), "answers 502: bad gateway"),
    "closes at once": (cut, "does not answer"),
    "closes without a word": (nothing, "does not answer"),
    "closes in the body": (
        begun(b'{"choices', cut, "application/json", 1000),
        "breaks its answer off",
    ),
    "ends in the body": (
        begun(b'{"choices', nothing, "application/json", 1000),
        "breaks its answer off",
    ),
    "closes in the stream": (begun(part(choices=choice(finish_reason=None)), cut), "its answer"),
    "ends in the stream": (
        begun(b": ping\n\n" + part(choices=[]), nothing),
        "ends its answer after 0 tokens",
    ),
    "an error in the stream": (
        begun(part(error={"message": f"boom {KEY}", "code": 500}), nothing),
        "breaks its answer off: boom (key)",
    ),
    "an error that is a text": (begun(part(error="boom"), nothing), "breaks its answer off: boom"),
}


def lines_of(report: Report) -> list[str]:
    found = [failure.finding.sentence for failure in report.failures]
    return [*found, *report.bad_events]


@pytest.mark.parametrize(("fault", "message"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_one_line_and_exit_code_4(fault: Fault, message: str) -> None:
    """The other trace runs all the same, and the key is never said."""
    with Double(meets=meets(fault)).serving() as double:
        report = run(spec_of(double))
    assert report.exit_code == 4 and report.suites[0].traces == 2 and len(report.bad_events) == 2
    assert all(
        message in line and "\n" not in line and KEY not in line for line in report.bad_events
    )


@pytest.mark.parametrize(("fault", "message"), FAILING.values(), ids=FAILING.keys())
def test_a_server_that_fails_is_a_finding(fault: Fault, message: str) -> None:
    """However it fails, and the other trace runs."""
    with Double(meets=meets(fault)).serving() as double:
        report = run(spec_of(double))
    assert report.exit_code == 1 and report.suites[0].traces == 2
    assert {failure.finding.anomaly for failure in report.failures} == {"engine-crashed"}
    assert all(message in line and KEY not in line for line in lines_of(report))


PASSING: dict[str, Fault] = {
    "503, then well": sent(503, b""),
    "429, come back at once": sent(429, b"", Retry_After="0"),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_what_passes_is_waited_out(fault: Fault) -> None:
    """It is no false alarm that the second sending finds what the first one left."""
    with Double(meets=meets(fault, 8, 10)).serving() as double:
        assert run(spec_of(double)).exit_code == 0


def every(fault: Fault, nth: int) -> Any:
    """Let every so-manieth completion meet a fault, once it was asked all that it must prove."""

    def met(handler: Any, number: int) -> bool:
        meets_it = number > ASKED_FIRST and number % nth == 0
        if meets_it:
            fault(handler)
        return meets_it

    return met


def test_who_is_asked_again_is_told() -> None:
    """A pass says how often requests had to be sent again, the questions asked cold among them."""
    with Double(meets=meets(sent(502, b""), 8, 10)).serving() as double:
        report = run(spec_of(double), "replays")
    assert report.exit_code == 0 and report.activity.sent_again == 2
    assert (
        "requests were sent again 2 times, as the server was not there or had no time"
        in terminal.covered(report)
    )


def test_a_server_that_is_away_again_and_again_has_died() -> None:
    """Although every request is answered when it is sent again; the line says how often."""
    with Double(meets=every(sent(502, b"bad gateway"), 5)).serving() as double:
        report = run(spec_of(double), "replays")
    assert report.exit_code == 1 and [failure.finding.anomaly for failure in report.failures] == [
        "engine-crashed"
    ]
    assert re.search(
        r"answers 502: bad gateway; it was away \d+ times, and is asked no more",
        lines_of(report)[0],
    )


@pytest.mark.parametrize(("headers", "code"), [({}, 4), ({"Retry_After": "0"}, 0)])
def test_a_server_that_says_when_to_come_back_is_busy_and_not_away(
    headers: dict[str, str], code: int
) -> None:
    """It may be so as often as it likes, and is told; one that does not say it is one that does
    not answer.
    """
    with Double(meets=every(sent(503, b"", **headers), 5)).serving() as double:
        report = run(spec_of(double), "replays")
    assert report.exit_code == code
    assert report.activity.sent_again > 5 if headers else "it was away" in report.bad_events[0]


@pytest.mark.parametrize(
    "fault", [sent(500, b""), cut], ids=["500", "breaks off before it answers"]
)
def test_a_server_that_fails_over_a_request_once_has_failed(fault: Fault) -> None:
    """It answers when it is asked again; but what falls over a cache hit, and is up again, is
    not well.
    """
    with Double(meets=meets(fault, 8, 9)).serving() as double:
        report = run(spec_of(double))
    assert report.exit_code == 1 and [failure.finding.anomaly for failure in report.failures] == [
        "engine-crashed"
    ]


@pytest.mark.parametrize("number", range(1, ASKED_FIRST + 1))
def test_a_server_that_is_busy_for_a_moment_is_asked_anew_what_it_must_prove(number: int) -> None:
    """A question that was sent twice may find what it left itself, so it proves nothing."""
    with Double(meets=meets(sent(503, b""), number - 1, number)).serving() as double:
        assert run(spec_of(double), "single-tokens").exit_code == 0


def test_a_server_that_is_always_busy_is_one_line() -> None:
    """Every second question is turned away, before the first trace."""
    turned = sent(429, b"", Retry_After="0")
    message = "turned questions away in each of 3 attempts; ask it when it is less busy"
    busy = Double(meets=lambda handler, number: number % 2 > 0 and not turned(handler))
    with busy.serving() as double, pytest.raises(UsageError, match=message):
        run(spec_of(double))


def test_who_was_asked_twice_may_find_what_the_first_sending_left() -> None:
    """A cold request as well: a proxy may give up what the server computes to its end."""
    address = Address("http://127.0.0.1:9")
    for again in (True, False):
        asked = Submit(r="a", prompt="", tokens=[1] * 9, generate=2)
        sending = request.Request(address, asked, b"", lambda: None, model="toy", cold="salts")
        sending.partial.restored = 8
        sending.again = int(again)
        if again:
            assert sending.answer().restored == -1
        else:
            with pytest.raises(
                request.ServerFailed, match="restores 8 tokens of a prompt that was asked cold"
            ):
                sending.answer()


def without_zero(part: dict[str, Any], number: int) -> dict[str, Any]:
    """Leave a count of 0 out, as servers do that write what they have."""
    usage = part.get("usage") or {}
    if not usage.get("prompt_tokens_details", {}).get("cached_tokens"):
        usage.pop("prompt_tokens_details", None)
    return part


def test_a_count_of_nothing_may_be_left_out() -> None:
    """The server counts where there is something to count, so where it does not there is
    nothing.
    """
    with Double(rewrite=without_zero).serving() as double:
        report = run(spec_of(double))
    assert report.exit_code == 0 and report.suites[0].activity.hits > 0


def test_a_server_that_cuts_prompts_is_one_line() -> None:
    """It answers both times to the same part of the prompt, so they agree."""

    def cut_off(part: dict[str, Any], number: int) -> dict[str, Any]:
        if number > ASKED_FIRST and part.get("usage"):
            part["usage"]["prompt_tokens"] = min(part["usage"]["prompt_tokens"], 2 * BLOCK)
        return part

    with Double(rewrite=cut_off).serving() as double:
        report = run(spec_of(double))
    assert report.exit_code == 4 and "counts 16 tokens of a prompt of " in report.bad_events[0]


def half_a_letter(part: dict[str, Any], number: int) -> bytes:
    """Write parts with half letters: a lone surrogate, and bytes that are no UTF-8."""
    for choice in part["choices"]:
        choice["text"] = "\ud83d%"
    return b": ping\n\ndata:" + json.dumps(part).encode().replace(b"%", b"\xf0\x9f") + b"\n\n"


def test_half_letters_comments_and_spaces_are_lawful() -> None:
    """Texts are not read; what counts are the ids."""
    with Double(rewrite=half_a_letter).serving() as double:
        assert run(spec_of(double)).exit_code == 0


def test_a_context_that_is_exceeded_is_a_refusal_and_no_finding() -> None:
    """Whoever is refused alone too has nothing to compare; the rest is judged."""

    def met(handler: Any, number: int) -> bool:
        refused = len(handler.asked["prompt"]) > 4 * BLOCK
        if refused:
            handler.send(400, {"error": {"message": "maximum context length is 32 tokens"}})
        return refused

    with Double(meets=met).serving() as double:
        report = run(spec_of(double), "conversations")
    refused = [body for body in double.bodies if len(body["prompt"]) > 4 * BLOCK]
    assert report.exit_code == 0 and refused and report.suites[0].activity.hits


def test_a_request_that_is_refused_only_when_others_run_is_a_finding() -> None:
    """Since it is answered alone."""

    def met(handler: Any, number: int) -> bool:
        server = handler.server.owner.server
        busy = len(handler.asked["prompt"]) > 3 * BLOCK and server.running
        if busy:
            handler.send(400, b"no")
        return bool(busy)

    with Double(meets=met, pace=0.005).serving() as double:
        report = run(spec_of(double), "newcomers")
    assert report.exit_code == 1 and "answer-missing" in {
        failure.finding.anomaly for failure in report.failures
    }


def wait(handler: Any) -> None:
    """Say nothing."""
    handler.server.owner.over.wait(30)


def drip(handler: Any) -> None:
    """Send a byte now and then."""
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.owner.over.wait(0.2):
        handler.wfile.write(b" ")
        handler.wfile.flush()


HANGING = {
    "silent": wait,
    "drip": drip,
    "body": begun(part(choices=choice(finish_reason=None)), wait),
}


@pytest.mark.parametrize("fault", HANGING.values(), ids=HANGING.keys())
def test_a_server_that_hangs_is_a_finding_after_the_deadline(fault: Fault) -> None:
    """The run goes on. The bound on the time is a loaded machine's: without the deadline it
    would be a minute.
    """
    with Double(meets=meets(fault, ASKED_FIRST, ASKED_FIRST + 1)).serving() as double:
        spec = spec_of(double).isolated(Isolation(deadline=3.0, opening=20.0))
        begun = time.monotonic()
        report = run(spec)
    assert report.exit_code == 1 and [failure.finding.anomaly for failure in report.failures] == [
        "hung"
    ]
    assert report.suites[0].traces == 2 and time.monotonic() - begun < 30


AT_FIRST: dict[str, tuple[Fault, str]] = {
    "texts alone": (
        sent(400, {"error": {"message": "prompt must be a string"}}),
        "takes no prompt of 32 token ids: prompt must be",
    ),
    "no logprobs": UNREADABLE["no logprobs"],
    "tokens by text": UNREADABLE["tokens by text"],
    "a redirection": UNREADABLE["a redirection"],
    "the key in its words": UNREADABLE["the key in its words"],
    "another model": UNREADABLE["another model"],
    "500": FAILING["500"],
    "tokens of its own": (
        begun(part(usage={"prompt_tokens": 33}), nothing),
        "counts 33 tokens of a prompt of 32 ids: it adds",
    ),
    "silent": (wait, "gives no answer within 1 s"),
    "drip": (drip, "gives no answer within 1 s"),
}


@pytest.mark.parametrize(("fault", "message"), AT_FIRST.values(), ids=AT_FIRST.keys())
def test_what_goes_wrong_before_the_first_trace_is_one_line(
    fault: Fault, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 4."""
    monkeypatch.setattr("cachewitness.systems.openai_server.cold_requests.ASKED_S", 1.0)
    with Double(meets=meets(fault, 0)).serving() as double, pytest.raises(UsageError) as refused:
        run(spec_of(double))
    assert (
        message in str(refused.value)
        and "\n" not in str(refused.value)
        and KEY not in str(refused.value)
    )


def test_a_server_that_is_gone_ends_the_run() -> None:
    """With the finding, and with what was not run."""

    def gone(handler: Any) -> None:
        handler.server.socket.close()
        cut(handler)

    with Double(meets=meets(gone, 12)).serving() as double:
        begun = time.monotonic()
        report = run(spec_of(double))
    assert report.exit_code == 1 and [failure.finding.anomaly for failure in report.failures] == [
        "engine-crashed"
    ]
    assert (
        "the rest of the run" in [left.what for left in report.not_run]
        and time.monotonic() - begun < 20
    )


@pytest.mark.parametrize(
    ("shortest", "code", "found"), [(1, 1, ["engine-crashed"]), (BLOCK, 0, [])]
)
def test_a_server_that_ends_over_prompts_of_some_length_is_run_without_them(
    shortest: int, code: int, found: list[str]
) -> None:
    """It is gone for everybody, which is a finding; with `shortest` no such prompt is sent, and
    they count as given up.
    """

    def met(handler: Any, number: int) -> bool:
        short = len(handler.asked["prompt"]) < BLOCK and number > ASKED_FIRST
        if short:
            handler.server.socket.close()
            cut(handler)
        return short

    with Double(meets=met).serving() as double:
        report = run(
            spec_of(double, shortest=str(shortest)), "single-tokens", "replays", "siblings"
        )
    assert (report.exit_code, [failure.finding.anomaly for failure in report.failures]) == (
        code,
        found,
    )
    assert (report.activity.aborted_by_engine > 0) == (shortest > 1)
    assert ("the rest of the run" in [left.what for left in report.not_run]) == bool(found)


def test_the_key_is_sent_and_never_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither in a report nor in a refusal; an address that holds one is refused without it."""
    with Double().serving() as double:
        assert run(spec_of(double)).exit_code == 0
        assert {headers["Authorization"] for headers in double.headers} == {f"Bearer {KEY}"}
    assert invoke(["run", "--engine", f"openai-server:url=http://me:{KEY}@127.0.0.1:1"]) == 4
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and KEY not in err and "key=VARIABLE" in err


def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that always wants to be asked in a second is asked for so long in all."""
    monkeypatch.setattr(request, "PATIENCE_S", 0.5)
    with Double(meets=meets(sent(429, b"later", Retry_After="1"))).serving() as double:
        begun = time.monotonic()
        assert run(spec_of(double)).exit_code == 4
    assert time.monotonic() - begun < 30
