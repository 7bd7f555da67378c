"""A task of lm-eval's is asked so that the cache is read, scored by lm-eval, and its traps are
named.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.score
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")

from lm_eval.api.model import hash_args
from lm_eval.api.samplers import ContextSampler
from lm_eval.models.api_models import TemplateAPI
from lm_eval.models.openai_completions import LocalChatCompletion

from cachewitness.cli import invoke, likelihood
from cachewitness.engines.answers import Opening
from cachewitness.parity.scores.noting import body_of
from cachewitness.parity.scores.server import LocalServer
from cachewitness.parity.scores.traps import OwnRun, own_max_length, traps
from suites.support.likelihood_double import Double
from suites.support.stub_backend import Stub

TASK = Path(__file__).resolve().parents[3] / "fixtures" / "lm_eval_task"
TINY = ("--task", "tiny_sums", "--data", str(TASK), "--noise", "1", "--shots", "1", "--arms", "hit")
EASY: dict[str, Any] = {
    "prompts": [[*range(100), 1], [*range(100), 2]],
    "lengths": [101, 101],
    "until": ["\n", "<eos>"],
    "answer_max": 256,
    "servers": 1,
    "end": "<eos>",
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def score(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = invoke(["score", "--likelihood", *argv])
    printed = capsys.readouterr()
    return code, printed.out, " ".join(printed.err.split())


def test_choices_are_compared_behind_hits_and_scored_by_lm_eval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    double = Double(exact=True, heeds="salts", form="vllm", echo="anew")
    with double.serving() as url:
        few = ("--limit", "2", "--positions", "10", "--json")
        code, out, err = score(capsys, "--base-url", url, *TINY, *few)
    whole = json.loads(out)
    assert code == whole["exit_code"] == 2, (whole["judged"], err)
    (arm,) = whole["judged"]
    assert arm["counted"] == arm["positions"] >= 20 and whole["prefixes"] == 1
    (metric,) = whole["lm_eval"]["metrics"]
    assert (metric["name"], metric["docs"], metric["changed"]) == ("acc", 2, 0)
    assert metric["cold"] == metric["there"]
    assert "asked twice, this server restored none, so a damaged cache would pass" in err
    assert sum("echo" in body for body in double.bodies) == 2


def test_a_place_is_counted_once_however_often_it_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that is not among the best ones takes a request of its own."""
    counts: dict[str, list[int]] = {}

    class Noting(likelihood._Progress):
        def begins(self, arm: str, requests: int) -> None:
            counts[arm] = [requests, 0]

        def asked(self) -> None:
            counts[[*counts][-1]][1] += 1

    monkeypatch.setattr(likelihood, "_Progress", Noting)
    double = Double()
    with double.serving() as url:
        score(capsys, "--base-url", url, *TINY, "--limit", "2", "--positions", "10")
    assert [*counts] == ["off", "noise", "foreign", "hit"]
    assert all(begun == asked for begun, asked in counts.values()), counts
    cold = sum(body.get("cache_prompt") is False for body in double.bodies)
    assert cold > sum(counts[arm][1] for arm in ("off", "noise", "foreign"))


def test_a_fault_ends_red_and_the_page_says_what_lm_eval_would_have_done(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Double("foreign prefix").serving() as url:
        few = ("--limit", "12", "--positions", "2", "--out", "kept")
        code, out, err = score(capsys, "--base-url", url, *TINY, *few)
    assert code == 1 and "hit: the cache changes" in out
    assert "12 questions are not scored" in " ".join(out.split())
    assert "KeyError" in err
    (folder,) = (tmp_path / "kept").iterdir()
    assert "What lm-eval would have done by itself" in (folder / "report.html").read_text("utf-8")


def test_a_server_that_reads_its_cache_for_an_echo_is_no_trap_and_a_second_one_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = (*TINY, "--limit", "2", "--positions", "2")
    hits = Double(echo="hits", form="vllm", heeds="salts")
    with hits.serving() as url, Double(caching=False, form="vllm").serving() as cold:
        _, _, alone = score(capsys, "--base-url", url, *few)
        _, _, beside = score(capsys, "--base-url", url, "--cold-url", cold, *few)
    assert "echo" not in alone + beside
    assert "--use_cache" in beside and "--use_cache" not in alone


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, ""),
        ({"lengths": [1792, 101]}, "1 of 2 prompts are longer than the 1,791 tokens"),
        ({"lengths": [1791, 101]}, ""),
        ({"answer_max": 2100}, "without its first 53 tokens"),
        ({"lengths": [2048, 2047], "answer_max": 0, "until": []}, "1 of 2 prompts are longer"),
        ({"prompts": [[*range(49), *[1] * 51], [*range(49), *[2] * 51]]}, "share 49 of 100 tokens"),
        ({"prompts": [[*range(50), *[1] * 50], [*range(50), *[2] * 50]]}, ""),
        ({"until": ["a", "b", "c", "d", "<eos>"]}, "does not end at '<eos>'"),
        ({"until": ["a", "b", "c", "<eos>"]}, ""),
        ({"until": ["a"]}, "sends '<eos>' as a stop string as well with num_concurrent=1"),
        ({"until": ["a"], "end": ""}, ""),
        ({"servers": 2}, "--use_cache"),
    ],
)
def test_each_trap_has_a_line_and_what_looks_like_it_has_none(
    change: dict[str, Any], line: str
) -> None:
    found = traps(OwnRun(**EASY | change), own_max_length())
    assert [line in one for one in found] == ([True] if line else [])


def test_a_task_that_writes_its_answers_is_scored_as_problems_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [json.loads(line) for line in (TASK / "test.jsonl").read_text("utf-8").splitlines()]
    answers = {row["question"]: row["choices"][row["answer"]] for row in rows}
    stub = Stub(answers, Opening(), wrong=lambda ask, restored: restored > 0)
    few = ("--limit", "16", "--shots", "1", "--arms", "off,miss,hit", "--bit-exact", "--json")
    task = ("--task", "tiny_sums_written", "--data", str(TASK))
    with LocalServer(stub) as local:
        found = invoke(["score", "--base-url", local.url, *task, *few])
    printed = capsys.readouterr()
    whole = json.loads(printed.out)
    assert found == whole["exit_code"] == 1, printed.err
    right = {arm["arm"]: arm["right"]["number-of-things"] for arm in whole["arms"]}
    assert right == {"off": 16, "miss": 16, "hit": 0}
    assert "its prompts share" in printed.err and "characters" in printed.err


def test_choices_without_likelihood_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with Double().serving() as url:
        code = invoke(["score", "--base-url", url, *TINY[:4]])
    assert code == 4 and "add --likelihood" in capsys.readouterr().err


def test_each_trap_is_in_the_lm_eval_that_is_installed() -> None:
    client = SimpleNamespace(model="m", _max_gen_toks=1)
    chat = LocalChatCompletion._create_payload(
        client, [{"role": "user", "content": "?"}], gen_kwargs={"until": [*"abcde"]}
    )
    assert chat["stop"] == [*"abcd"]
    assert body_of("m", [1, 2])["echo"] is True
    one_at_a_time = inspect.getsource(TemplateAPI.model_call)
    together = inspect.getsource(TemplateAPI.amodel_call)
    assert "eos=self.eos_string" in one_at_a_time and "eos=" not in together
    assert "[x[-max_context_len:] for x" in inspect.getsource(TemplateAPI.generate_until)
    assert [*inspect.signature(hash_args).parameters] == ["attr", "args"]
    sampler = ContextSampler([{"row": row} for row in range(99)], rnd=1)
    assert sampler.sample(5) != sampler.sample(5)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("--data", str(TASK)), "--data: belongs to a task of lm-eval's"),
        (("--task", "tiny_sums", "--data", "nowhere"), "nowhere is no folder"),
        ((*TINY, "--shots", "190"), "has 144 documents for examples, not 190"),
        ((*TINY, "--gsm8k", "hub"), "--gsm8k, --shots-from: task tiny_sums has its documents"),
    ],
)
def test_what_does_not_fit_is_refused(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], why: str
) -> None:
    code, _, err = score(capsys, "--base-url", "http://127.0.0.1:9", *argv)
    assert code == 4 and why in err, err
