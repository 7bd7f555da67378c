"""ONNX Runtime GenAI's kept generators: what is right passes, every seeded fault is found, and so
is what the library does wrong.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec.structs import replace

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.events import Answer
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    GroupSpec,
    Layout,
    Op,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.compare import runs
from cachewitness.systems.onnxruntime_genai.kind import MODELS, configurations, open_engine
from cachewitness.systems.onnxruntime_genai.settings import CONTROL, MAX_LENGTH, REWINDS
from cachewitness.workloads.answer_stories import write
from cachewitness_faults.onnxruntime_genai.cache_faults import FAULTS
from suites.support.parameters import constant, weights_in

installed = pytest.mark.skipif(
    not (find_spec("onnxruntime_genai") and os.environ.get(MODELS)),
    reason=f"needs onnxruntime-genai, and {MODELS}; ci/stage_onnxruntime_genai.sh has both",
)
HYBRID = "qwen3_5"


def engine(**options: str) -> EngineSpec:
    """Return the engine in this process."""
    return parse(
        "onnxruntime-genai:" + ",".join(f"{name}={value}" for name, value in options.items())
    )


def trace(*ops: Op, **options: object) -> Trace:
    """Return a trace of these operations on the first configuration's layout."""
    header = write(configurations()[0].shape("answers"), "idle", 0).header
    return Trace(replace(header, name="test", options=options), list(ops))


def asked(r: str, prompt: str, salt: str = "") -> list[Op]:
    """Ask and wait."""
    return [Submit(r=r, prompt=prompt, generate=3, salt=salt), Finish(r)]


GROWN = [
    *asked("a", "doc:30"),
    *asked("b", "doc:30 @a:3 more:9"),
    *asked("c", "doc:30 else:9"),
    *asked("d", "doc:30 else:9"),
    *asked("e", "doc:20 other:14"),
    *asked("f", "again:21"),
    *asked("g", "again:21"),
    *asked("h", "doc:30", salt="t"),
]
"""Behind a whole answer, a text that parts inside, the same prompt again, another tenant."""
TOGETHER = [
    *asked("a", "doc:60"),
    Submit(r="b", prompt="doc:60 left:9", generate=6),
    Submit(r="c", prompt="doc:60 right:9", generate=6),
    Finish("b"),
    Finish("c"),
]
"""Two that go on from one conversation."""
CUT = [
    Submit(r="a", prompt="doc:60", generate=9),
    *[Step()] * 2,
    Abort("a"),
    *asked("b", "doc:60 more:9"),
]
"""A client goes away in the middle of its prompt, of which 23 tokens are computed in a step."""
LEFT = [
    *asked("a", "doc:60"),
    Submit(r="b", prompt="other:80", generate=3),
    Submit(r="c", prompt="doc:41 left:9", generate=3),
    Step(),
    Abort("c"),
    Submit(r="d", prompt="doc:30 right:9", generate=3),
    Finish("b"),
    Finish("d"),
]
"""A client goes away when its conversation is rewound, and `b` has all 23 tokens of the step: the
next one rewinds it again.
"""
TWICE = [
    *asked("a", "doc:60"),
    *asked("b", "doc:41 more:9"),
]
"""One rewind, of a conversation that is much longer."""


def found(of: Trace, **options: str) -> list[str]:
    """Return the anomalies of a trace."""
    return [finding.anomaly for finding in runs(of, engine(**options)).findings]


@installed
@pytest.mark.parametrize("model", REWINDS)
def test_no_parameter_of_a_model_is_constant(model: str) -> None:
    """As its maker left it beside what was exported."""
    weights = Path(os.environ[MODELS]) / f"{model}.weights" / "model.safetensors"
    assert constant(weights_in(weights)) == []


@installed
@pytest.mark.parametrize("buffer", ["shared", "grown"])
@pytest.mark.parametrize("model", REWINDS)
def test_a_model_is_resumed_rightly(model: str, buffer: str) -> None:
    """Restored tokens, chunks, company, a client that goes away; no finding."""
    cut = (trace(*TOGETHER, chunk=23), trace(*CUT, chunk=23))
    for of in (trace(*GROWN), trace(*GROWN, chunk=7), *cut):
        assert found(of, model=model, buffer=buffer) == []


RESTORED = {
    "llama": {"b": 33, "c": 30, "d": 38, "e": 20, "g": 20},
    HYBRID: {"b": 33, "d": 32, "g": 16},
    "lfm2": {"b": 33},
}
"""By hand. `b` goes on behind 30 tokens and the whole answer of 3. Of attention alone the rest is
what is shared with some conversation, without a prompt's last token. Qwen3.5 has snapshots at
multiples of 16: `b` made one behind 33, since it went on from there, which `c` does not share; `d`
asks as `c` did, which has one behind 32 of its 39 tokens; `e` shares 20 of them, in front of that;
`g` has 21 tokens, and the snapshot is behind 16. LFM2 is never rewound.
"""


@installed
@pytest.mark.parametrize("model", RESTORED)
def test_a_trace_is_judged_by_hand(model: str) -> None:
    """What is restored is as counted by hand, and each answer is that of a generator that was just
    made, by the library alone.
    """
    opened = open_engine(trace().header, {"model": model})
    sent: dict[str, list[int]] = {}
    restored = {}
    for r, words, salt in (
        ("a", [("doc", 30)], ""),
        ("b", [("doc", 30), ("@a", 3), ("more", 9)], ""),
        ("c", [("doc", 30), ("else", 9)], ""),
        ("d", [("doc", 30), ("else", 9)], ""),
        ("e", [("doc", 20), ("other", 14)], ""),
        ("f", [("again", 21)], ""),
        ("g", [("again", 21)], ""),
        ("h", [("doc", 30)], "t"),
    ):
        prompt = [token for word, length in words for token in spelled(word, sent)[:length]]
        opened.apply(Submit(r=r, prompt="", generate=3, salt=salt, tokens=prompt))
        (answer,) = opened.apply(Finish(r))
        assert isinstance(answer, Answer) and answer.tokens == cold(model, prompt)
        sent[r] = answer.tokens
        restored[r] = answer.restored
    assert {r: tokens for r, tokens in restored.items() if tokens} == RESTORED[model]


def spelled(word: str, answers: dict[str, list[int]]) -> list[int]:
    """Return the tokens of a word: an answer, or 40 of its own."""
    if word.startswith("@"):
        return answers[word[1:]]
    return [sum(word.encode()) * (n + 3) * 31 % 251 for n in range(40)]


def cold(model: str, prompt: list[int]) -> list[int]:
    """Return three tokens behind a prompt, from a new generator."""
    import numpy as np
    import onnxruntime_genai as og

    settings = og.GeneratorParams(made := og.Model(str(Path(os.environ[MODELS]) / model)))
    settings.set_search_options(max_length=200, do_sample=False)
    generator = og.Generator(made, settings)
    generator.append_tokens(np.asarray(prompt, dtype=np.int32))
    for _ in range(3):
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)][len(prompt) :]


WHERE = {
    "genai-rewound-one-token-short": (trace(*GROWN), {"model": "llama"}),
    "genai-snapshot-one-token-early": (trace(*GROWN), {"model": HYBRID}),
    "genai-state-not-restored": (trace(*GROWN), {"model": HYBRID}),
    "genai-rewound-twice": (trace(*TWICE), {"model": "llama", "buffer": "grown"}),
    "genai-cancelled-prompt-whole": (trace(*CUT, chunk=23), {"model": HYBRID}),
    "genai-shared-by-two": (trace(*TOGETHER), {"model": HYBRID}),
    "genai-snapshot-behind-the-answer": (trace(*GROWN), {"model": HYBRID}),
}
"""Where a fault shows, if not in attention alone."""


@installed
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_only_with_the_cache(fault: str) -> None:
    """By the anomaly that it was said to have; the same trace is right without the fault, and with
    it where nothing is kept.
    """
    of, options = WHERE.get(fault, (trace(*GROWN), {"model": "llama"}))
    assert FAULTS[fault].anomaly in found(of, **options, mutant=fault)
    assert found(of, **options) == []
    assert found(of, **options, mutant=fault, caching="off") == []


@installed
@pytest.mark.parametrize(
    ("fault", "options"),
    [
        ("genai-rewound-twice", {"model": "llama", "buffer": "shared"}),
        ("genai-rewound-twice", {"model": HYBRID, "buffer": "grown"}),
        ("genai-snapshot-behind-the-answer", {"model": "llama"}),
        ("genai-state-not-restored", {"model": "llama"}),
    ],
)
def test_what_is_no_fault_elsewhere_passes(fault: str, options: dict[str, str]) -> None:
    """Two rewinds of a shared buffer are right, and where no state is kept none is lost."""
    assert found(trace(*GROWN), **options, mutant=fault) == []


@installed
@pytest.mark.parametrize("model", REWINDS)
def test_an_answer_whose_last_token_is_left_is_wrong_behind_it(model: str) -> None:
    """The library computes what is appended, and not what it generated last."""
    of = trace(*GROWN[:4])
    assert found(of, model=model, answer="left") == ["answer-differs"]
    assert found(of, model=model, answer="left", buffer="grown") == ["engine-crashed"]


@installed
def test_a_second_rewind_in_turn_is_wrong_in_buffers_that_grow() -> None:
    """It is right in a shared buffer, and a model with states is not rewound there."""
    assert found(trace(*LEFT, chunk=23), model="llama", buffer="grown") == ["answer-differs"]
    assert found(trace(*LEFT, chunk=23), model="llama") == []
    assert found(trace(*LEFT, chunk=23), model=HYBRID, buffer="grown") == []


@installed
def test_the_longest_prompt_is_answered_and_a_longer_one_is_refused() -> None:
    """One token of the answer has room behind a prompt of `max_prompt` tokens."""
    opened = open_engine(trace().header, {"model": CONTROL})
    longest = opened.describe().rules.max_prompt
    assert longest == MAX_LENGTH - 1
    for tokens, ended in ((longest, "length"), (longest + 1, "refused")):
        asked_for = Submit(r="a", prompt="", generate=1, tokens=[7] * tokens)
        (answer,) = opened.apply(asked_for) + opened.apply(Finish("a"))
        assert isinstance(answer, Answer) and answer.ended == ended


def test_what_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is refused in a line, before anything is imported."""
    monkeypatch.delenv(MODELS, raising=False)
    wide = replace(trace().header, layout=Layout("wide", [GroupSpec("full", 16)], "", ""))
    refused: list[tuple[TraceHeader, dict[str, str], type[Exception], str]] = [
        (trace().header, {"model": "gemma"}, UsageError, "model is one of"),
        (trace().header, {"answer": "right"}, UsageError, "answer is computed or left"),
        (wide, {}, UsageError, "does not fit"),
        (trace(chunk=0).header, {}, UsageError, "chunk is a number"),
        (trace(record=True).header, {}, UsageError, "takes the option chunk"),
        (trace().header, {}, EngineMissing, f"models=DIR or {MODELS}"),
        (trace().header, {"models": "nowhere"}, EngineMissing, "nowhere/qwen3_5 has none"),
    ]
    for header, options, error, says in refused:
        with pytest.raises(error, match=says):
            open_engine(header, options)
