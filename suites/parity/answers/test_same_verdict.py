"""`run`, `replay` and `check` say the same of a difference, also where the batch may be at fault
and not the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachewitness.cli import invoke
from cachewitness.core import stored
from cachewitness.core import trace_format as traces
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines.answering import declared
from cachewitness.engines.answers_level import AnswersLevel, Controls
from cachewitness.engines.registry import parse
from cachewitness.parity.answers.compare import runs
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.sample import engine as sample
from cachewitness.systems.sample.server import Server
from cachewitness.workloads.answer_stories import write
from cachewitness.workloads.configurations import Configuration

CONFIGURATION = sample.configurations()[0]
NOISE, NOISY_FROM = 0.01, 24
"""By which share logits move for each other request in a batch, if somebody in it has a prompt of
so many tokens."""
EARLY = "sample:mutant=snapshot-one-token-early"


class Noisy(Server):
    """A server whose answers depend on who shares the batch; the short prompts of the floor do
    not show it.
    """

    def step(self) -> None:
        together = [*self.running, *self.waiting]
        self._noise = NOISE * (
            max((request.prompt for request in together), default=0) >= NOISY_FROM
        )
        super().step()


def noisy(header: Any, options: Any) -> sample.SampleEngine:
    engine = sample.SampleEngine(header, options)
    engine.server.__class__ = Noisy
    return engine


def registered(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let the sample engine be one that does not declare that its answers are exact whatever the
    batch.
    """
    kind = replace(
        sample.ENGINE,
        answers_level=AnswersLevel({"caching": "off"}, exact_batches=False),
        controls=Controls({"uncached": {"caching": "off"}}),
        **changes,
    )
    monkeypatch.setattr(sample, "ENGINE", kind)


def run(engine: str, story: str) -> int:
    def traces(configuration: Configuration, level: Level, seed: int) -> Iterator[Trace]:
        return iter([write(configuration.shape(level), story, seed)])

    suite = replace(
        next(suite for suite in SUITES if suite.name == "answers"), traces=traces, spread=0
    )
    return Runner(parse(engine), [CONFIGURATION], shrunk=0).run([suite]).exit_code


def replayed(engine: str, story: str, folder: Path) -> tuple[int, int]:
    """Return the exit codes of replaying a story and of checking the history of that."""
    trace = folder / "t.jsonl"
    history = folder / "h.jsonl"
    traces.save(write(CONFIGURATION.shape("answers"), story, 0), trace)
    code = invoke(["replay", str(trace), "--engine", engine, "--history", str(history)])
    return code, invoke(["check", str(history)])


def test_the_batchs_noise_is_unknown_to_all_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its cache the engine differs from itself as well; each says so, and none accuses
    the cache.
    """
    registered(monkeypatch, name="sample-noisy", open=noisy)
    assert run("sample", "newcomers") == 2
    assert replayed("sample", "newcomers", tmp_path) == (2, 2)
    verdicts = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("verdict: ")
    ]
    reason = (
        "(exit code 2): answers: batch: it fails without the cache as well: the model's doing, or"
        " the batch's; so no"
    )
    assert len(verdicts) == 2 and all(
        f"verdict: unknown {reason} contradiction is shown: Let r" in line for line in verdicts
    )


def test_a_fault_of_the_cache_fails_in_all_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history has its cause, so that `check` need not ask the engine."""
    registered(monkeypatch)
    assert run(EARLY, "replays") == 1 and replayed(EARLY, "replays", tmp_path) == (1, 1)


@pytest.mark.parametrize(("exact", "code"), [(False, 2), (True, 1)])
def test_a_history_without_causes_says_what_it_lacks(
    exact: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where nobody looked for the cause, a difference may be the batch's, if the engine is not
    exact.
    """
    if not exact:
        registered(monkeypatch)
    stored.save(
        runs(write(CONFIGURATION.shape("answers"), "replays", 0), parse(EARLY)).history,
        tmp_path / "h.jsonl",
    )
    for quiet in ([], ["--quiet"]):
        assert invoke(["check", str(tmp_path / "h.jsonl"), *quiet]) == code
        out = capsys.readouterr().out
        assert (
            "which only the engine can tell: `replay` the trace on it; so no contradiction"
            in " ".join(out.split())
        ) != exact
    assert invoke(["explain", str(tmp_path / "h.jsonl")]) == 0
    assert (
        "it was not judged to the end: answers: the answers of this engine"
        in capsys.readouterr().out
    ) != exact


def test_a_smaller_trace_that_shows_no_contradiction_does_not_replace_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What shrinking leaves may be the batch's; the finding of the whole trace stands."""
    registered(monkeypatch)
    trace = tmp_path / "t.jsonl"
    traces.save(write(CONFIGURATION.shape("answers"), "replays", 0), trace)
    monkeypatch.setattr(
        "cachewitness.workloads.shrink.shrink", lambda asked, fails: asked.with_ops(asked.ops[:2])
    )
    assert invoke(["replay", str(trace), "--engine", EARLY, "--shrink"]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_an_engine_without_salts_is_not_accused_of_keeping_them_apart_badly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stored trace of tenants, replayed: as in `run` the salts are left out of it, and that is
    told.
    """
    engine = "sample:mutant=name-without-salt"
    assert run(engine, "tenants") == 1
    assert replayed(engine, "tenants", tmp_path) == (1, 1)
    monkeypatch.setattr(sample, "declared", lambda *given, salt: declared(*given))
    assert run(engine, "tenants") == 0
    capsys.readouterr()
    assert replayed(engine, "tenants", tmp_path) == (0, 0)
    assert "left out: salt: engine sample does not declare it" in capsys.readouterr().err
