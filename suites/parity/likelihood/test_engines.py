"""`score --likelihood` on an engine in place of a server."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

pytestmark = pytest.mark.score
pytest.importorskip("scipy", reason="scipy is missing: pip install 'cachewitness[score]'")

from cachewitness import Texts
from cachewitness._util.data import fixtures
from cachewitness.cli import invoke
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Answer, Event
from cachewitness.core.trace_format import Op, Submit
from cachewitness.engines.answers import BackendError
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.likelihood.of_engine import opened
from cachewitness.parity.likelihood.steps import Step
from cachewitness.systems.sample import engine as sample
from cachewitness.systems.sample.model import VOCABULARY

FEW = ("--limit", "16", "--positions", "2", "--noise", "1", "--arms", "hit", "--out", "kept")
TEXTS = fixtures() / "english_texts" / "texts.jsonl"
NOISE = 1e-4
CONFIGURATION = sample.configurations()[0]


def _tokens(_: Mapping[str, str]) -> Callable[[str], list[int]]:
    return lambda text: [zlib.crc32(word.encode()) % VOCABULARY for word in text.split()]


class Rounding(sample.SampleEngine):
    """Rounds by where a prompt was resumed, as kernels do; with `caching=off` restores nothing."""

    lengths: dict[str, int]

    def __init__(self, header: Any, options: Mapping[str, str]) -> None:
        super().__init__(header, options)
        self.lengths = {}

    def apply(self, op: Op) -> list[Event]:
        if isinstance(op, Submit):
            self.lengths[op.r] = len(op.tokens)
        return [self.rounded(event) for event in super().apply(op)]

    def rounded(self, event: Event) -> Event:
        if not isinstance(event, Answer):
            return event
        computed = self.lengths[event.r] - max(event.restored, 0)
        by = NOISE * (0.5 + zlib.crc32(str(computed).encode()) % 1000 / 1000)
        event.logprobs = [value - by for value in event.logprobs if value is not None]
        return event


class Sure(Rounding):
    """Behind a hit it is sure of another token."""

    def rounded(self, event: Event) -> Event:
        event = super().rounded(event)
        if isinstance(event, Answer) and event.restored > 0:
            event.tokens = [(token + 1) % VOCABULARY for token in event.tokens]
            event.logprobs = [-1e-9] * len(event.tokens)
        return event


class Stale(Rounding):
    """A hit comes with a state that has not seen the last of its tokens."""

    def rounded(self, event: Event) -> Event:
        event = super().rounded(event)
        if isinstance(event, Answer) and event.restored > 0:
            event.logprobs = [value - 0.05 for value in event.logprobs if value is not None]
        return event


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[type[Any]], EngineSpec]:
    """Put an engine in the place of the sample; it knows texts."""
    monkeypatch.chdir(tmp_path)

    def registered(engine: type[Any]) -> EngineSpec:
        level = sample.ENGINE.answers_level
        assert level is not None
        kind = replace(
            sample.ENGINE,
            open=engine,
            answers_level=replace(level, texts=Texts(_tokens, CONFIGURATION)),
        )
        monkeypatch.setattr(sample, "ENGINE", kind)
        return EngineSpec(kind, {}, "sample")

    return registered


def score(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = invoke(["score", "--likelihood", *argv])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_sound_cache_does_not_fail_and_one_with_a_stale_state_does(
    plug: Callable[[type[Any]], EngineSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    """Cold requests are asked of the engine itself, by salts."""
    plug(Rounding)
    code, out, err = score(capsys, "--engine", "sample", *FEW, "--json")
    whole = json.loads(out)
    assert code in (0, 2) and whole["judged"][0]["counted"] == 32, err
    assert whole["settings"]["cold_by"] == "salts" and whole["settings"]["server"] == "sample"
    for wrong in (Stale, Sure):
        plug(wrong)
        code, out, _ = score(capsys, "--engine", "sample", *FEW)
        assert code == 1 and "hit: the cache changes" in out


def test_texts_of_a_file_are_asked_behind_their_prefixes(
    plug: Callable[[type[Any]], EngineSpec], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two of each of eight. A file without a line, or a field, and a task beside it are refused."""
    asked = ("--engine", "sample", "--texts", str(TEXTS), *FEW)
    plug(Rounding)
    code, out, err = score(capsys, *asked, "--json")
    whole = json.loads(out)
    assert code in (0, 2) and whole["judged"][0]["counted"] == 32, err
    assert (whole["settings"]["task"], whole["settings"]["source"]) == ("texts", str(TEXTS))
    plug(Stale)
    assert score(capsys, *asked)[0] == 1
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "half.jsonl").write_text('{"prefix": "one"}\n')
    for texts, more, why in (
        ("none.jsonl", (), "none.jsonl has no line"),
        ("half.jsonl", (), "half.jsonl:1"),
        (str(TEXTS), ("--task", "problems"), "and no task; leave out --task"),
    ):
        code, _, err = score(capsys, "--engine", "sample", "--texts", texts, *more, *FEW)
        assert code == 4 and why in err, err


def test_an_engine_without_salts_is_asked_cold_without_its_cache(
    plug: Callable[[type[Any]], EngineSpec],
) -> None:
    class Unsalted(Rounding):
        def describe(self) -> Any:
            header = super().describe()
            header.capabilities.remove("salt")
            return header

    with opened(plug(Unsalted)) as (cached, twin):
        assert twin is not None and not cached.salts
        prompt = list(range(40))
        cold, first, again = (
            one.ask(prompt, 1, "a prompt", cache_salt="new") for one in (twin, cached, cached)
        )
    assert (cold.restored, first.restored) == (0, 0) and again.restored > 0
    assert cold.steps == first.steps != again.steps


def test_without_salts_every_noisy_position_counts(
    plug: Callable[[type[Any]], EngineSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    """What the first position of a question leaves would be restored by its second one, at which
    the noise is measured. The first question is also what shows how to ask cold.
    """

    class Unsalted(Rounding):
        def describe(self) -> Any:
            header = super().describe()
            header.capabilities.remove("salt")
            return header

    plug(Unsalted)
    code, out, err = score(capsys, "--engine", "sample", *FEW, "--json")
    (judged,) = json.loads(out)["judged"]
    assert code in (0, 2) and judged["counted"] > 16, err
    assert judged["questions"] == 15


def test_what_an_engine_chooses_is_all_that_is_compared(
    plug: Callable[[type[Any]], EngineSpec],
) -> None:
    """Of an answer without a number nothing is; a prompt that it gives up ends the run."""

    class Numberless(Rounding):
        def rounded(self, event: Event) -> Event:
            event = super().rounded(event)
            if isinstance(event, Answer):
                event.logprobs[0] = None
                event.ended = "refused" if self.lengths[event.r] == 3 else event.ended
            return event

    with opened(plug(Numberless)) as (engine, _):
        (first, second) = engine.ask([1, 2], 2, "a prompt").steps
        assert first == Step(first.token, {}) and [*second.best] == [second.token]
        with pytest.raises(BackendError, match="a prompt: sample ends a prompt of 3 tokens by: re"):
            engine.ask([1, 2, 3], 2, "a prompt")


class Lying(Rounding):
    """Does what a class of its own says to every answer."""

    def rounded(self, event: Event) -> Event:
        event = super().rounded(event)
        if isinstance(event, Answer):
            self.lie(event)
        return event

    def lie(self, answer: Answer) -> None:
        """Change an answer."""


class Certain(Lying):
    """Is more than certain."""

    def lie(self, answer: Answer) -> None:
        answer.logprobs = [3.0] * len(answer.tokens)


class Silent(Lying):
    """Tells no numbers."""

    def lie(self, answer: Answer) -> None:
        answer.logprobs = []


class TooMuch(Lying):
    """Restores more than there is."""

    def lie(self, answer: Answer) -> None:
        answer.restored = 10**6


class Raising(Lying):
    """Fails at its first answer."""

    def lie(self, answer: Answer) -> None:
        raise KeyError("row")


class Mixing(Lying):
    """Knows salts, and does not heed them."""

    def apply(self, op: Op) -> list[Event]:
        return super().apply(changed(op, salt="") if isinstance(op, Submit) else op)


@pytest.mark.parametrize(
    ("engine", "code", "why"),
    [
        (Certain, 4, "sample gives a token a probability beyond 1, 3 as logarithm"),
        (Silent, 4, "--engine sample: tells no logprobs of its answers"),
        (TooMuch, 4, "restored"),
        (Raising, 2, "sample: KeyError: 'row'"),
        (Mixing, 4, "it declares salts, and a new salt finds what another one left"),
    ],
)
def test_what_cannot_be_is_one_line(
    plug: Callable[[type[Any]], EngineSpec],
    capsys: pytest.CaptureFixture[str],
    engine: type[Any],
    code: int,
    why: str,
) -> None:
    plug(engine)
    found, out, err = score(capsys, "--engine", "sample", *FEW)
    assert found == code and why in err and "Traceback" not in err, (out, err)


@pytest.mark.parametrize(
    "broken",
    [
        lambda options: options["vocabulary"],
        lambda options: lambda text: options[text],
        lambda options: lambda text: text.split(),
    ],
    ids=["when it is made", "when it is asked", "words for ids"],
)
def test_a_tokenizer_that_fails_is_one_line(
    plug: Callable[[type[Any]], EngineSpec],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    broken: Any,
) -> None:
    kind = plug(Rounding).kind
    assert kind.answers_level is not None
    level = replace(kind.answers_level, texts=Texts(broken, CONFIGURATION))
    monkeypatch.setattr(sample, "ENGINE", replace(kind, answers_level=level))
    code, _, err = score(capsys, "--engine", "sample", *FEW)
    assert code == 4 and "sample: makes no tokens of a text: " in err and "Traceback" not in err


def test_an_engine_that_fails_at_its_end_leaves_the_verdict(
    plug: Callable[[type[Any]], EngineSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    class Clinging(Stale):
        def close(self) -> None:
            raise EngineFailure("engine-crashed", "does not end")

    plug(Clinging)
    assert score(capsys, "--engine", "sample", *FEW)[0] == 1


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("--engine", "sample"), "has no tokens for a text"),
        (("--engine", "transformers"), "its tiny models know no text"),
        (("--engine", "sample", "--base-url", "http://h"), "give one of them"),
        (("--engine", "sample", "--against", "http://h"), "is no server; leave out --against"),
        (("--engine", "sample", "--task", "tiny_sums"), "cannot be asked of it"),
    ],
)
def test_what_does_not_fit_an_engine_is_refused(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], why: str
) -> None:
    code, _, err = score(capsys, *argv)
    assert code == 4 and why in err, err
