"""`cachewitness serve`: what a reader types who has no engine, and what a server must bear from
those who ask it.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cachewitness.cli import invoke
from cachewitness.engines.answers import Answer, Ask, BackendError, Opening
from cachewitness.parity.scores.server import LocalServer
from suites.support.stub_backend import Stub

PROMPT = "Anna has 5 red boxes and Ben has 3 blue cups . " * 20


def post(url: str, body: object = None) -> tuple[int, Any]:
    """Return the status and the body of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data)) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


def cached(url: str, prompt: str = PROMPT) -> int:
    """Ask a prompt and return how many of its tokens the server says it had cached."""
    status, answer = post(f"{url}/v1/completions", {"prompt": prompt, "max_tokens": 4})
    assert status == 200, answer
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture
def tiered() -> Iterator[LocalServer]:
    with LocalServer(Stub({}, Opening(tier=True))) as running:
        yield running


def test_a_reset_spares_the_second_tier_unless_it_is_named(tiered: LocalServer) -> None:
    """The flag is read as vLLM's server reads it: any spelling of a truth value, the last one if
    it stands there twice.
    """
    reset = f"{tiered.url}/reset_prefix_cache"
    whole = len(PROMPT.split()) // 4 * 4 - 4
    assert cached(tiered.url) == 0
    for query in (
        "",
        "?reset_external=false",
        "?reset_external=0",
        "?reset_running_requests=true",
        "?reset_external=1&reset_external=no",
    ):
        assert (post(reset + query), cached(tiered.url)) == ((200, {"success": True}), whole), query
    for query in (
        "?reset_external=true",
        "?reset_external=1",
        "?reset_external=True&reset_running_requests=false",
    ):
        assert (post(reset + query), cached(tiered.url)) == ((200, {"success": True}), 0), query


@pytest.mark.parametrize(
    "query", ["reset_external=", "reset_external=2", "reset_running_requests=perhaps"]
)
def test_a_flag_that_is_none_is_refused_and_nothing_is_reset(
    tiered: LocalServer, query: str
) -> None:
    cached(tiered.url)
    status, answer = post(f"{tiered.url}/reset_prefix_cache?{query}")
    assert (
        status == 422
        and answer["error"]["message"].endswith("it is true or false")
        and cached(tiered.url) > 0
    )


def test_an_engine_that_does_not_forget_is_told_as_it_is() -> None:
    """Status 200 and no success, as vLLM answers while blocks are held."""
    with LocalServer(Stub({}, Opening(), forgets=False)) as running:
        assert post(f"{running.url}/reset_prefix_cache") == (200, {"success": False})


def test_the_counters_tell_the_tiers_apart(tiered: LocalServer) -> None:
    """Of three requests the first found nothing, the second all but its end on the device, the
    third as much in the tier.
    """
    assert cached(tiered.url) == 0
    there = cached(tiered.url)
    post(f"{tiered.url}/reset_prefix_cache")
    assert cached(tiered.url) == there > 0
    with urllib.request.urlopen(f"{tiered.url}/metrics") as response:
        found = dict(re.findall(r"vllm:(\w+)_total\S* (\d+)", response.read().decode()))
    words = len(PROMPT.split())
    assert {name: int(count) for name, count in found.items()} == {
        "prefix_cache_queries": 3 * words,
        "prefix_cache_hits": there,
        "external_prefix_cache_queries": 3 * words - there,
        "external_prefix_cache_hits": there,
        "request_success": 3,
    }


class Particular(Stub):
    """Refuses a batch in which a prompt says so, as an engine does with a prompt that is too
    long.
    """

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        for ask in asks:
            if "refused" in ask.prompt:
                raise BackendError(f"question {ask.id}: it can never run")
            if "dies" in ask.prompt:
                raise RuntimeError
        return super().answer(asks)


def test_a_prompt_that_can_never_run_is_nobody_elses_loss() -> None:
    """Requests that arrive together are answered by one call; those beside the refused one are
    asked again without it.
    """
    with LocalServer(Particular({}, Opening())) as running:
        futures = running.dispatcher
        with pytest.raises(BackendError, match="it can never run"):
            futures.answer([Ask("0", "good"), Ask("1", "refused"), Ask("2", "good too")])
        assert futures.requests == 2
        assert post(f"{running.url}/v1/completions", {"prompt": "refused"})[0] == 500
        assert post(f"{running.url}/v1/completions", {"prompt": "dies"}) == (
            500,
            {"error": {"message": "RuntimeError"}},
        )
        assert cached(running.url, "good") == 0


BAD: dict[str, tuple[object, int, str]] = {
    "no JSON": (b"prompt", 400, "no request for a completion"),
    "no text": (b'{"prompt": "\xff"}', 400, "no request for a completion"),
    "token ids": ({"prompt": [1, 2]}, 400, "Expected `str`, got `int`"),
    "an empty prompt": ({"prompt": ""}, 400, "prompt is empty"),
    "no prompt": ({"prompt": []}, 400, "prompt is empty"),
    "another model": (
        {"prompt": "a", "model": "gpt"},
        404,
        "there is no model 'gpt'; this server has toy",
    ),
    "drawn at random": ({"prompt": "a", "temperature": 1}, 400, "this server is greedy"),
    "no answer": ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens is 0"),
}


@pytest.mark.parametrize(("body", "status", "message"), BAD.values(), ids=BAD.keys())
def test_a_request_that_does_not_fit_is_one_line(
    tiered: LocalServer, body: object, status: int, message: str
) -> None:
    code, answer = post(f"{tiered.url}/v1/completions", body)
    assert (
        code == status
        and message in answer["error"]["message"]
        and "\n" not in answer["error"]["message"]
    )
    assert cached(tiered.url) == 0, "the server goes on"


@pytest.mark.parametrize("length", ["many", "-1", str(1 << 40)])
def test_a_length_that_cannot_be_read_is_refused(tiered: LocalServer, length: str) -> None:
    host, port = tiered.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert connection.recv(64).startswith(b"HTTP/1.1 413 ")
    assert cached(tiered.url) == 0


USAGE = {
    "an engine that answers nothing": (
        ("--engine", "reference"),
        "answers no prompts; those that do: ",
    ),
    "a tier without a cache": (("--tier", "--no-cache"), "--tier: "),
    "no such policy": (("--policy", "lmcash"), "did you mean 'lmcache'?"),
    "no port": (("--port", "70000"), "--port"),
}


@pytest.mark.parametrize(("argv", "message"), USAGE.values(), ids=USAGE.keys())
def test_a_mistake_of_the_users_is_one_line(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = invoke(["serve", *argv])
    err = capsys.readouterr().err
    assert (
        code == 4 and err.startswith("cachewitness: ") and err.count("\n") == 1 and message in err
    )


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start `cachewitness serve --policy lmcache` as a reader does, and return where it says
    that it listens.
    """
    pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")
    argv = [sys.executable, "-m", "cachewitness.cli", "serve", "--policy", "lmcache", "--port", "0"]
    folder = tmp_path_factory.mktemp("serve")
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, cwd=folder) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found and "policy lmcache, with a second tier" in line, line
        yield found[0], child
        child.kill()


@pytest.mark.toy
def test_the_documents_procedure_by_hand(toy: tuple[str, subprocess.Popen[str]]) -> None:
    """Computed; cached by vLLM; after a reset of vLLM's cache served by LMCache; after one of
    both computed again.
    """
    url, _ = toy
    assert cached(url) == 0
    there = cached(url)
    assert there >= 512 and post(f"{url}/reset_prefix_cache") == (200, {"success": True})
    before = _external_hits(url)
    assert cached(url) == there and _external_hits(url) - before == there
    assert (
        post(f"{url}/reset_prefix_cache?reset_external=true") == (200, {"success": True})
        and cached(url) == 0
    )


@pytest.mark.toy
def test_a_refused_prompt_holds_no_blocks(toy: tuple[str, subprocess.Popen[str]]) -> None:
    """Beside one that is too long nobody is lost, and a reset succeeds, which it does not while
    a request holds a block.
    """
    url, _ = toy
    status, answer = post(
        f"{url}/v1/completions", {"prompt": [PROMPT, "1 " * 5000], "max_tokens": 4}
    )
    assert status == 500 and "max_model_len" in answer["error"]["message"]
    assert cached(url) > 0 and post(f"{url}/reset_prefix_cache") == (200, {"success": True})


@pytest.mark.toy
@pytest.mark.score
def test_the_verdict_over_http_is_that_in_process(
    toy: tuple[str, subprocess.Popen[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Same questions, same answers, same share from the tier; the reset in between goes through
    the server.
    """
    pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")
    monkeypatch.chdir(tmp_path)
    found = []
    for where in (("--base-url", toy[0], "--bit-exact"), ()):
        code = invoke(
            [
                "score",
                *where,
                "--policy",
                "lmcache",
                "--limit",
                "16",
                "--arms",
                "off,off-again,tier",
                "--json",
            ]
        )
        whole = json.loads(capsys.readouterr().out)
        (tier,) = whole["judged"]
        found.append(
            (
                code,
                tier["verdict"],
                tier["right_cold"],
                tier["right"],
                tier["restored"]["from_tier"],
            )
        )
    assert found[0] == found[1] and found[0][:4] == (0, "pass", 16, 16)


@pytest.mark.toy
def test_a_port_that_is_taken_is_one_line(
    toy: tuple[str, subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    code = invoke(["serve", "--port", toy[0].rpartition(":")[2]])
    err = capsys.readouterr().err
    assert code == 4 and "cannot be listened on" in err and err.count("\n") == 1


@pytest.mark.toy
def test_ctrl_c_ends_it_without_a_word_of_trouble(toy: tuple[str, subprocess.Popen[str]]) -> None:
    """The last test of this server."""
    url, child = toy
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (0, "") and re.fullmatch(r"stopped after \d+ requests\n", out)
    with pytest.raises(urllib.error.URLError):
        post(f"{url}/reset_prefix_cache")


def _external_hits(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        (count,) = re.findall(
            r"vllm:external_prefix_cache_hits_total\S* (\d+)", response.read().decode()
        )
    return int(count)
