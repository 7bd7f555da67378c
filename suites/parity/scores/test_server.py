"""A server is scored through lm-eval's own client, and proves for every request what it
restored.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.score
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")
pytest.importorskip("aiohttp", reason="aiohttp is missing: pip install 'cachewitness[score]'")

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.engines.answers import Answer, Ask, BackendError, Opening
from cachewitness.parity.scores import server as server_module
from cachewitness.parity.scores import tasks
from cachewitness.parity.scores.remote import RemoteBackend, Server
from cachewitness.parity.scores.server import LocalServer
from suites.support.gsm8k_rows import documented, rows_like_gsm8k
from suites.support.stub_backend import Stub, knowing, wrong_in

PROBLEMS = tasks.problems(limit=24)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stub() -> Stub:
    return Stub(knowing(PROBLEMS), Opening())


@pytest.fixture
def local(stub: Stub) -> Iterator[LocalServer]:
    with LocalServer(stub) as running:
        yield running


def score(capsys: pytest.CaptureFixture[str], url: str, *argv: str) -> tuple[int, str, str]:
    code = invoke(["score", "--base-url", url, "--limit", "24", "--bit-exact", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_server_is_scored_with_what_each_request_restored(
    capsys: pytest.CaptureFixture[str], local: LocalServer
) -> None:
    """Cold arms restore nothing although the server caches all the time: every request has a
    salt of its own.
    """
    code, out, err = score(capsys, local.url, "--arms", "off,off-again,hit,replay", "--json")
    whole = json.loads(out)
    assert (code, err, whole["engine"]) == (0, "", f"toy at {local.url}")
    restored = {entry["arm"]: entry["restored"] for entry in whole["arms"]}
    assert restored["off"]["tokens"] == restored["off-again"]["tokens"] == 0
    assert (
        restored["hit"]["least"] > 300 and restored["replay"]["least"] >= restored["hit"]["least"]
    )
    assert {entry["right"]["strict-match"] for entry in whole["arms"]} == {24}


def test_two_runs_against_one_server_do_not_warm_each_other(
    capsys: pytest.CaptureFixture[str], local: LocalServer
) -> None:
    for _ in range(2):
        assert score(capsys, local.url, "--arms", "off,off-again,miss,hit")[0] == 0


def test_a_server_whose_cache_is_wrong_fails_and_the_group_is_named(
    capsys: pytest.CaptureFixture[str], stub: Stub
) -> None:
    """A server's requests are not numbered by question, so the fault goes by what the question
    says.
    """
    recurrent = [doc.question for doc in PROBLEMS.asked if doc.group == "recurrent"]
    stub.wrong = lambda ask, restored: (
        bool(restored) and any(question in ask.prompt for question in recurrent)
    )
    with LocalServer(stub) as local:
        code, out, _ = score(capsys, local.url, "--arms", "off,off-again,hit")
    assert code == 1 and "the questions that lost are of group recurrent" in out


def test_a_server_that_ignores_salts_checked_nothing(
    capsys: pytest.CaptureFixture[str], stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = stub.answer
    monkeypatch.setattr(
        stub,
        "answer",
        lambda asks: plain([Ask(a.id, a.prompt, a.stop, a.max_tokens) for a in asks]),
    )
    with LocalServer(stub) as local:
        code, out, _ = score(capsys, local.url, "--arms", "off,off-again,hit")
    assert code == 5 and "salts are ignored" in " ".join(out.split())


def test_cold_arms_go_to_the_server_without_a_cache_if_there_is_one(
    capsys: pytest.CaptureFixture[str], local: LocalServer
) -> None:
    uncached = Stub(knowing(PROBLEMS), Opening(caching=False))
    with LocalServer(uncached) as cold:
        assert (
            score(capsys, local.url, "--cold-url", cold.url, "--arms", "off,off-again,hit")[0] == 0
        )
    assert len(uncached.asked) == 48


def test_a_server_that_counts_nothing_has_restored_nothing(
    capsys: pytest.CaptureFixture[str], local: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LocalServer.completion

    def without_details(self: LocalServer, content: bytes) -> dict[str, Any]:
        answer = plain(self, content)
        del answer["usage"]["prompt_tokens_details"]
        return answer

    monkeypatch.setattr(LocalServer, "completion", without_details)
    code, out, _ = score(capsys, local.url, "--arms", "off,off-again,hit")
    assert code == 5 and "hit: restored 0.0% of the prompts" in out


BODIES = {
    "empty": (200, b"", "application/json", "answered 200 with an empty body"),
    "empty and of no kind": (200, b"", "text/plain", "answered 200"),
    "no JSON": (200, b"<html>", "text/html", "answered 200"),
    "no completion": (200, b'{"choices": []}', "application/json", "answered 200 with 0 choices"),
    "an error": (
        500,
        b'{"error": {"message": "out of memory"}}',
        "application/json",
        "answered 500",
    ),
}


@pytest.mark.parametrize(("status", "body", "kind", "message"), BODIES.values(), ids=BODIES.keys())
def test_a_server_that_answers_nonsense_is_unknown_and_what_it_answered_is_kept(
    capsys: pytest.CaptureFixture[str],
    local: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: bytes,
    kind: str,
    message: str,
) -> None:
    """From the eleventh completion on. Afterwards the same command goes on and passes."""
    plain = server_module._Handler._json
    count = iter(range(1000))

    def some(handler: Any, code: int, content: Any) -> None:
        if handler.path == "/v1/completions" and next(count) >= 10:
            return handler._send(status, body, kind)
        return plain(handler, code, content)

    with monkeypatch.context() as patch:
        patch.setattr(server_module._Handler, "_json", some)
        patch.setattr("cachewitness.engines.retries.ATTEMPTS", 1)
        code, _, err = score(capsys, local.url, "--arms", "off,off-again,hit", "--concurrent", "1")
    assert (
        code == 2
        and err.count("\n") == 1
        and message in err
        and "what was answered is kept in .cachewitness" in err
    )
    (kept,) = Path(".cachewitness/score").glob("*/answers-off.jsonl")
    assert len(kept.read_bytes().splitlines()) == 11, (
        "what the server says of itself, and ten answers"
    )
    code, out, _ = score(capsys, local.url, "--arms", "off,off-again,hit", "--concurrent", "1")
    assert code == 0 and "10 of 24 answers are kept" in out


def test_a_server_that_goes_away_is_unknown(capsys: pytest.CaptureFixture[str], stub: Stub) -> None:
    stub.dies_after = 10
    with LocalServer(stub) as local:
        code, _, err = score(capsys, local.url, "--arms", "off,off-again,hit")
    assert code == 2 and err.count("\n") == 1 and "the server answered 500" in err


def test_a_tier_is_read_after_a_reset_and_a_reset_that_is_refused_is_unknown(
    capsys: pytest.CaptureFixture[str], stub: Stub
) -> None:
    """The status is 200 either way; what counts is `success`."""
    stub.forgets = False
    with LocalServer(stub) as local:
        code, _, err = score(capsys, local.url, "--arms", "off,off-again,tier")
    assert code == 2 and "the engine did not forget" in err


@pytest.mark.parametrize(
    ("tier", "expected"), [(True, 0), (False, 5)], ids=["with a tier", "without"]
)
def test_what_a_server_restores_after_a_reset_came_from_its_tier(
    capsys: pytest.CaptureFixture[str], tier: bool, expected: int
) -> None:
    with LocalServer(Stub(knowing(PROBLEMS), Opening(tier=tier))) as local:
        code, out, _ = score(capsys, local.url, "--arms", "off,off-again,tier", "--json")
    (entry,) = (entry["restored"] for entry in json.loads(out)["arms"] if entry["arm"] == "tier")
    assert (
        code == expected and entry["from_tier"] == entry["tokens"] and bool(entry["tokens"]) is tier
    )


def test_an_arm_that_no_server_can_be_brought_to_is_refused(
    capsys: pytest.CaptureFixture[str], local: LocalServer
) -> None:
    code, _, err = score(capsys, local.url, "--arms", "off,preempted")
    assert code == 4 and "leave `preempted` out" in err


def test_a_model_that_the_server_has_not_is_refused(local: LocalServer) -> None:
    with pytest.raises(UsageError, match="has no model 'other'; it has toy"):
        Server(local.url, model="other")
    assert Server(local.url + "/v1/").model == "toy"


def test_a_key_goes_with_every_request(
    capsys: pytest.CaptureFixture[str], local: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str | None] = []

    def noting(plain: Callable[[Any], None]) -> Callable[[Any], None]:
        def note(handler: Any) -> None:
            sent.append(handler.headers.get("Authorization"))
            plain(handler)

        return note

    for name in ("do_GET", "do_POST"):
        plain = getattr(server_module._Handler, name)
        monkeypatch.setattr(server_module._Handler, name, noting(plain))
    monkeypatch.setenv("THE_KEY", "k-1")
    score(capsys, local.url, "--arms", "off,hit", "--key", "THE_KEY")
    assert {*sent} == {"Bearer k-1"} and len(sent) > 2 * 16


def get(url: str) -> str:
    with urllib.request.urlopen(url) as response:
        return str(response.read().decode())


def test_the_server_counts_what_it_restored(local: LocalServer) -> None:
    """Independent of what it tells with each answer: the counters add up to the same."""
    remote = RemoteBackend(local.url, "toy")
    asks = [Ask(str(i), f"{PROBLEMS.docs[0].context} {i}", salt="s") for i in range(6)]
    answers = remote.answer(asks[:1]) + remote.answer(asks[1:])
    hits = sum(a.restored[""] for a in answers)
    queries = sum(a.prompt_tokens for a in answers)
    metrics = get(f"{local.url}/metrics")
    assert f'vllm:prefix_cache_hits_total{{model_name="toy"}} {hits}\n' in metrics and hits > 0
    assert f'vllm:prefix_cache_queries_total{{model_name="toy"}} {queries}\n' in metrics
    assert remote.reset() and remote.answer(asks[:1])[0].restored == {"": 0}
    assert get(f"{local.url}/health") == "" and remote.versions()["model"] == "toy"


def test_requests_that_come_together_are_answered_by_one_call(
    local: LocalServer, stub: Stub
) -> None:
    gate = threading.Event()
    plain = stub.answer

    def slow(asks: Any) -> Any:
        gate.wait(10)
        return plain(asks)

    stub.answer = slow  # type: ignore[method-assign]
    remote = RemoteBackend(local.url, "toy", concurrent=12)
    answered: list[str] = []
    thread = threading.Thread(
        target=lambda: answered.extend(
            a.id for a in remote.answer([Ask(str(i), "a") for i in range(12)])
        )
    )
    thread.start()
    gate.set()
    thread.join()
    assert (
        answered == [str(i) for i in range(12)]
        and sum(stub.batches) == 12
        and len(stub.batches) < 12
    )


def test_an_error_of_the_operating_system_in_the_backend_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As any other error of the backend is; it is not taken for a client that went away."""
    stub = Stub({}, Opening())

    def full(asks: Sequence[Ask]) -> list[Answer]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stub, "answer", full)
    with LocalServer(stub) as server:
        request = urllib.request.Request(f"{server.url}/v1/completions", data=b'{"prompt": "a"}')
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value as answer:
            assert answer.code == 500 and "No space left on device" in answer.read().decode()


REFUSED = {
    "no JSON": (b"[1", "array"),
    "no prompt": (b"{}", "prompt"),
    "not greedy": (b'{"prompt": "a", "temperature": 0.7}', "this server is greedy"),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_the_server_refuses_what_it_cannot_answer(
    local: LocalServer, body: bytes, message: str
) -> None:
    request = urllib.request.Request(f"{local.url}/v1/completions", data=body)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as answer:
        assert answer.code == 400 and message in answer.read().decode()


def test_the_server_answers_a_list_of_prompts_in_order(local: LocalServer) -> None:
    docs = PROBLEMS.docs[:3]
    body = {"prompt": [f"Question: {doc.question}\nAnswer:" for doc in docs], "stop": "\n\n"}
    request = urllib.request.Request(f"{local.url}/v1/completions", data=json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        choices = json.loads(response.read())["choices"]
    assert [choice["text"].strip() for choice in choices] == [doc.answer for doc in docs]


def test_gsm8k_through_a_server_is_nothing_checked_because_the_model_is_too_weak(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two hundred questions in the real file's form, cold and cached, through `local-completions`.

    That every cached request restored most of its prompt is proven; that the model knows none of
    the answers makes the equal scores worthless, and it is said so.
    """
    Path("test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_like_gsm8k(205)))
    with LocalServer(Stub({}, Opening())) as local:
        code = invoke([*documented(local.url), "--json"])
    whole = json.loads(capsys.readouterr().out)
    assert (code, whole["settings"]["shots"]) == (5, 5)
    restored = {entry["arm"]: entry["restored"] for entry in whole["arms"]}
    assert (
        restored["off"]["requests"] == restored["hit"]["requests"] == 200
        and restored["off"]["tokens"] == 0
    )
    assert (
        restored["hit"]["least"] > 100
        and restored["hit"]["tokens"] > 0.8 * restored["hit"]["prompt_tokens"]
    )
    assert "too weak to judge by: at most 0 of 200" in whole["judged"][0]["reasons"][0]


def test_the_same_questions_pass_with_a_model_that_knows_them_and_fail_with_a_wrong_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The opposite of the test above: strength alone makes the same run a verdict."""
    Path("test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_like_gsm8k(205)))
    task = tasks.gsm8k("test.jsonl")
    for spoilt, expected in ((0, 0), (1, 1)):
        stub = Stub(
            knowing(task), Opening(), lambda ask, restored, spoilt=spoilt: bool(restored and spoilt)
        )
        with LocalServer(stub) as local:
            assert invoke([*documented(local.url), "--bit-exact"]) == expected
        capsys.readouterr()


def test_a_dead_server_is_a_backend_error_of_one_line() -> None:
    with pytest.raises(BackendError, match=r"question 0: http://127\.0\.0\.1:9 does not answer"):
        RemoteBackend("http://127.0.0.1:9", "toy").answer([Ask("0", "a")])


def test_wrong_in_is_about_this_tasks_questions() -> None:
    """The stub's fault hits what its name says: a test of the test."""
    wrong = wrong_in(PROBLEMS, "full")
    hit = [doc.group for number, doc in enumerate(PROBLEMS.asked) if wrong(Ask(str(number), ""), 1)]
    assert hit and set(hit) == {"full"} and not wrong(Ask("0", ""), 0)
