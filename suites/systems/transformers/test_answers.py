"""transformers, resumed from copies of its own caches: what is right is passed, and every seeded
fault is found.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from cachewitness._util.data import fixtures
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.checkers.finding import Measured
from cachewitness.core.events import Answer
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Abort, Finish, GroupSpec, Layout, Op, Step, Submit, Trace
from cachewitness.core.validate import load_trace
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.compare import runs
from cachewitness.systems.transformers.architectures import ARCHITECTURES, COMMON, CONTROL
from cachewitness.systems.transformers.kind import configurations
from cachewitness.workloads.answer_stories import write
from suites.support.parameters import constant
from suites.support.real_engines import needs_transformers as installed

WRONG = ("nemotron_h-small-steps", "zamba2-small-steps", "mamba", "jamba", "recurrent_gemma")
"""Architectures that transformers itself does not resume rightly
(docs/systems/transformers-notes.md)."""
RIGHT = [name for name in ARCHITECTURES if name not in WRONG]
NEWER = [name for name, architecture in ARCHITECTURES.items() if architecture.since]
"""Those that the oldest supported release does not have."""


def engine(**options: str) -> EngineSpec:
    """Return the engine in this process."""
    return parse("transformers:" + ",".join(f"{name}={value}" for name, value in options.items()))


def trace(*ops: Op, pages: int = 64, **options: object) -> Trace:
    """Return a trace of these operations on the first configuration's layout."""
    header = write(configurations()[0].shape("answers"), "idle", 0).header
    return Trace(replace(header, name="test", pages=pages, options=options), list(ops))


def asked(r: str, prompt: str, generate: int = 3) -> list[Op]:
    """Ask and wait."""
    return [Submit(r=r, prompt=prompt, generate=generate), Finish(r)]


GROWN = trace(
    *asked("a", "doc:30"), *asked("b", "doc:30 more:9"), *asked("c", "doc:30 @a:2 else:5")
)
"""A prompt that goes on behind what is kept: at a block, at its end, and behind an answer."""
PARTED = trace(*asked("a", "doc:40"), *asked("b", "doc:37 else:9"), record=True)
"""A prompt that parts from a kept text between two places at which it was kept."""
CUT = Trace(
    replace(PARTED.header, options={"record": True, "chunk": 7}),
    [*GROWN.ops, *asked("d", "doc:26 else:9")],
)
"""The same and more, in chunks, from windows whose past is recorded."""
ALIKE = [
    *asked("a", "doc:30"),
    *asked("b", "doc:30 more:9", 9),
    *asked("c", "doc:30 @a:2 else:5", 9),
    *asked("d", "new:40"),
]
"""Rows that part behind what was kept, and a prompt of which nothing was."""
STATIC = trace(*ALIKE, static=True)
REORDERED = trace(*ALIKE, rows="reordered")
SELECTED = trace(*ALIKE, rows="selected")
STATIC_REORDERED = trace(*ALIKE, static=True, rows="reordered", chunk=7)
STATIC_PARTED = trace(*PARTED.ops, static=True)
PARALLEL = trace(*asked("a", "doc:30"), *asked("b", "other:30"), *asked("c", "doc:30 more:9"))
"""A prompt that goes on behind what is kept, beside one that begins otherwise."""
AGAIN = trace(*asked("a", "doc:33"), *asked("b", "doc:33 b:4", 5), *asked("c", "doc:33 c:4", 5))


def measured(result: Result) -> Measured:
    """Return what the comparison of answers came to."""
    return next(tally.measured[0] for tally in result.tallies if tally.measured)


def found(of: Trace, spec: EngineSpec) -> list[str]:
    """Return the anomalies of a trace."""
    return [finding.anomaly for finding in runs(of, spec).findings]


@installed
@pytest.mark.parametrize("model", RIGHT)
def test_an_architecture_is_resumed_rightly(model: str) -> None:
    """Restored tokens, chunks, crops where the library has them; no finding, and a floor far
    below its ceiling.
    """
    if not _had(model):
        pytest.skip(f"transformers {ARCHITECTURES[model].since}")
    for of in (GROWN, CUT, STATIC_REORDERED if _takes_static(model) else REORDERED):
        result = runs(of, engine(model=model))
        assert result.findings == [] and result.activity.hits
        assert measured(result).tolerance == 2e-4 < measured(result).ceiling


@installed
@pytest.mark.parametrize("model", ARCHITECTURES)
def test_no_parameter_of_a_model_is_constant(model: str) -> None:
    """Of what a checkpoint holds: the biases by which experts are chosen are among it."""
    if not _had(model):
        pytest.skip(f"transformers {ARCHITECTURES[model].since}")
    from cachewitness.systems.transformers.model import Model

    held = Model.tiny(ARCHITECTURES[model]).module.state_dict()
    assert constant((name, of.flatten().tolist()) for name, of in held.items()) == []


@installed
def test_a_checkpoint_is_resumed_rightly_and_its_faults_are_found(tmp_path: Path) -> None:
    """A folder that the library wrote answers as the model that it wrote, and damaged otherwise."""
    from cachewitness.systems.transformers.model import Model

    Model.tiny(ARCHITECTURES["gemma3"]).module.save_pretrained(tmp_path)
    result = runs(GROWN, engine(checkpoint=str(tmp_path)))
    assert result.findings == [] and result.activity.hits
    opened = parse(f"transformers:checkpoint={tmp_path}").open(GROWN.header)
    answering = opened.describe().rules.answering
    opened.close()
    assert answering is not None and answering.vocabulary == COMMON["vocab_size"]
    damaged = engine(checkpoint=str(tmp_path), mutant="cropped-one-token-short")
    assert "answer-differs" in found(PARTED, damaged)


@installed
def test_a_folder_that_is_no_checkpoint_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"checkpoint {tmp_path}: "):
        parse(f"transformers:checkpoint={tmp_path}").open(GROWN.header)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("checkpoint=/nowhere", "there is no /nowhere"),
        ("checkpoint=.,model=gemma3", "name one of them"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(named: str, why: str) -> None:
    """Before anything is imported."""
    with pytest.raises(UsageError, match=why):
        parse(f"transformers:{named}").open(GROWN.header)


@installed
@pytest.mark.parametrize("model", NEWER)
def test_an_architecture_that_the_release_does_not_have_is_one_line(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the first release that has it."""
    import transformers

    monkeypatch.delitem(
        transformers.CONFIG_MAPPING._mapping, ARCHITECTURES[model].model_type, raising=False
    )
    with pytest.raises(
        UsageError, match=f"is in transformers {ARCHITECTURES[model].since} and later, and this is "
    ):
        parse(f"transformers:model={model}").open(GROWN.header)


def _had(model: str) -> bool:
    import transformers

    return ARCHITECTURES[model].model_type in transformers.CONFIG_MAPPING


def _takes_static(model: str) -> bool:
    """Whether its attention takes a static cache: in 5.23 that of Inkling 2 raises an error."""
    return model != "inkling2" or not _before_5_24()


def _before_5_24() -> bool:
    import transformers

    return bool(transformers.__version__.startswith("5.23."))


@installed
@pytest.mark.parametrize("model", WRONG)
def test_what_transformers_resumes_wrongly_is_found_and_only_with_the_cache(model: str) -> None:
    """The same trace passes where every token is computed from nothing."""
    assert "answer-differs" in found(GROWN, engine(model=model))
    assert found(GROWN, engine(model=model, caching="off")) == []


@installed
@pytest.mark.parametrize("model", ["mamba", "jamba"])
def test_a_mamba_1_layer_is_resumed_rightly_by_one_token_at_a_time(model: str) -> None:
    """The one changed thing: more tokens at once lose the recurrent state, one does not."""
    assert found(GROWN, engine(model=model, feed="tokens")) == []


@installed
@pytest.mark.parametrize("model", ["nemotron_h", "zamba2"])
def test_time_steps_above_their_least_value_are_resumed_rightly(model: str) -> None:
    """The one changed thing: `dt_bias`, so that the limit that decoding leaves out does nothing."""
    assert found(GROWN, engine(model=model)) == []


FAULTS = {
    "resumed-without-its-state": (GROWN, "qwen3_next", "lfm2"),
    "chunk-from-an-empty-state": (CUT, "qwen3_5", "lfm2"),
    "convolution-one-token-off": (GROWN, "lfm2", "gemma3"),
    "state-of-a-shorter-prefix": (GROWN, "qwen3_5", "llama"),
    "state-of-another-prompt": (PARALLEL, "qwen3_5", "llama"),
    "cache-shared-instead-of-copied": (AGAIN, "qwen3_next", "llama"),
    "cropped-one-token-short": (PARTED, "gemma3", "qwen3_next"),
    "window-one-token-short": (GROWN, "mistral", "llama"),
    "rows-chosen-without-states": (REORDERED, "qwen3_next", "llama"),
    "rows-chosen-without-a-layer": (REORDERED, "gemma3", "mamba2"),
    "static-cache-handed-on-with-states": (STATIC, "qwen3_next", "llama"),
}
"""By fault: a trace, an architecture that has it, and one that has nothing to plant it into, or is
not hurt by it."""


@installed
@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found_and_does_not_raise_the_floor(fault: str) -> None:
    """Its floor and tolerance are those of the engine without the fault."""
    of, model, _ = FAULTS[fault]
    right = runs(of, engine(model=model))
    wrong = runs(of, engine(model=model, mutant=fault))
    assert right.findings == [] and "answer-differs" in [
        finding.anomaly for finding in wrong.findings
    ]
    assert _noise(wrong) == _noise(right)


@installed
@pytest.mark.parametrize(
    "fault", [name for name in FAULTS if name != "cache-shared-instead-of-copied"]
)
def test_a_fault_in_what_a_model_does_not_have_is_no_finding(fault: str) -> None:
    """The lawful look-alike: the same change where there is no state, no window, or nothing to
    crop.
    """
    of, _, other = FAULTS[fault]
    assert found(of, engine(model=other, mutant=fault)) == []


ELSEWHERE = [
    (STATIC_PARTED, "cropped-one-token-short", "llama"),
    (SELECTED, "rows-chosen-without-a-layer", "gemma3"),
    (STATIC_REORDERED, "rows-chosen-without-a-layer", "llama"),
    (STATIC_REORDERED, "rows-chosen-without-states", "lfm2"),
]
"""Traces that crop a static cache and choose rows by the other methods, each with a fault in just
that."""


@installed
@pytest.mark.parametrize(("of", "fault", "model"), ELSEWHERE)
def test_static_caches_are_cropped_and_rows_chosen_by_every_method(
    of: Trace, fault: str, model: str
) -> None:
    if of is STATIC_PARTED and _before_5_24():
        pytest.skip("static caches are cropped in transformers 5.24 and later")
    assert found(of, engine(model=model)) == []
    assert "answer-differs" in found(of, engine(model=model, mutant=fault))


@installed
@pytest.mark.parametrize("fault", [name for name in FAULTS if name.startswith(("rows", "static"))])
def test_a_fault_in_what_a_trace_does_not_ask_for_is_no_finding(fault: str) -> None:
    """One row, and caches that grow."""
    assert found(GROWN, engine(model="qwen3_next", mutant=fault)) == []


@installed
def test_rows_that_a_layer_cannot_select_are_refused() -> None:
    """The library selects rows of keys and values alone, and raises AttributeError elsewhere."""
    for model, of in (("qwen3_next", SELECTED), ("llama", trace(static=True, rows="selected"))):
        with pytest.raises(UsageError, match=r"rows=selected: .* has no batch_repeat_interleave"):
            engine(model=model).open(of.header)


@installed
def test_a_static_cache_refuses_what_it_has_no_room_for() -> None:
    """And says so in advance."""
    opened = engine(model=CONTROL).open(STATIC.header)
    assert opened.describe().rules.max_prompt == 1023
    asking = Submit(r="a", prompt="", tokens=[3] * 1022, generate=3)
    events = [event for op in (asking, Finish("a")) for event in opened.apply(op)]
    opened.close()
    assert [one.ended for one in events if isinstance(one, Answer)] == ["refused"]


REPEATED = [*asked("a", "doc:30"), *asked("b", "doc:30")]


@installed
@pytest.mark.parametrize("model", ["qwen3_next", "llama"])
def test_an_equal_prompt_restores_something_or_what_was_kept_of_it_was_evicted(model: str) -> None:
    """Windows and attention alone are asked on the same layout, whose states lie at intervals."""
    kept = "short-prefixes-not-kept"
    assert found(trace(*REPEATED), engine(model=model)) == []
    assert found(trace(*REPEATED), engine(model=model, mutant=kept)) == ["lost-repeat"]
    assert found(trace(*REPEATED, pages=1), engine(model=model)) == []


def _noise(result: Result) -> tuple[float, float]:
    return measured(result).floor, measured(result).tolerance


@installed
def test_a_client_that_goes_away_leaves_what_was_kept_usable() -> None:
    """In the middle of a prompt, of an answer, and before anything was computed."""
    ops = [op for index in range(3) for op in _left(f"p{index}", index)]
    chunked = Trace(replace(GROWN.header, options={"chunk": 7}), [*ops, *asked("z", "doc:40 z:3")])
    assert found(chunked, engine()) == []


def _left(r: str, steps: int) -> list[Op]:
    return [Submit(r=r, prompt="doc:40", generate=9), *[Step()] * (4 * steps), Abort(r)]


@installed
def test_a_small_pool_makes_room_and_a_large_one_restores_more() -> None:
    """Prefixes are given up, least recently used first, and answers stay right."""
    ops = [
        op
        for turn in "ab"
        for index in range(4)
        for op in asked(f"{turn}{index}", f"doc{index}:33")
    ]
    small, large = (runs(trace(*ops, pages=pages), engine(model="lfm2")) for pages in (4, 64))
    assert small.findings == large.findings == []
    assert measured(small).restored < measured(large).restored


@installed
def test_another_salt_restores_nothing() -> None:
    """Two tenants with one prompt."""
    ops = [Submit(r="a", prompt="doc:40", generate=2, salt="one"), Finish("a")]
    ops += [Submit(r="b", prompt="doc:40", generate=2, salt="two"), Finish("b")]
    result = runs(trace(*ops), engine(model=CONTROL))
    assert result.findings == [] and measured(result).restored == 0


@pytest.mark.parametrize(
    ("options", "layout", "message"),
    [
        ("model=gpt", None, "model is one of"),
        ("caching=maybe", None, "caching is on or off"),
        ("feed=letters", None, "feed is chunks or tokens"),
        (
            "",
            Layout("w", [GroupSpec("full", 16), GroupSpec("sliding", 16, window=32)]),
            "layout w does not fit",
        ),
        ("", Layout("r", [GroupSpec("recurrent", 16)]), "layout r does not fit"),
    ],
)
def test_what_does_not_fit_is_one_line(options: str, layout: Layout | None, message: str) -> None:
    """Before anything is imported."""
    header = replace(GROWN.header, **({"layout": layout} if layout else {}))
    with pytest.raises(UsageError, match=message):
        parse(f"transformers:{options}").open(header)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafts": 2}, "not drafts"),
        ({"record": 2}, "record is true or false, not 2"),
        ({"static": "yes"}, "static is true or false, not 'yes'"),
        ({"rows": "two"}, "rows is one of one, reordered, selected, not 'two'"),
    ],
)
def test_an_option_of_a_trace_that_it_does_not_take_is_refused(
    options: dict[str, object], message: str
) -> None:
    """Nothing that was asked for is left out in silence."""
    with pytest.raises(UsageError, match=message):
        parse("transformers").open(replace(GROWN.header, options=options))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an engine that is missing, not a broken one."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "cachewitness.systems.transformers.engine", raising=False)
    with pytest.raises(EngineMissing, match=r"pip install 'cachewitness\[transformers\]'"):
        parse("transformers").open(GROWN.header)


STORED = {
    "mamba-1-several-tokens": ({"model": "jamba"}, {"feed": "tokens"}),
    "mamba-2-time-steps": ({"model": "zamba2-small-steps"}, {"model": "zamba2"}),
    "states-in-the-model": ({"model": "recurrent_gemma"}, {"model": "gemma3"}),
    "cropped-twice": ({"model": "lfm2", "crop": "again"}, {"crop": "on"}),
    "rows-selected": ({"model": "falcon_h1"}, {"model": "gemma3"}),
    "static-cropped": ({"model": "inkling2"}, {"crop": "off"}),
}
"""By stored trace: the options with which it was found, and one thing changed with which it passes.
"""


def stored(name: str) -> Trace:
    return load_trace(fixtures() / "findings" / f"transformers-{name}.jsonl")


@installed
@pytest.mark.parametrize("name", STORED)
def test_a_finding_is_found_again_and_not_with_one_thing_changed(name: str) -> None:
    """In transformers 5.23 and 5.24."""
    options, changed = STORED[name]
    if stored(name).header.options.get("static") and not _takes_static(options["model"]):
        pytest.skip("its layers take no static cache")
    assert "answer-differs" in found(stored(name), engine(**options))
    assert found(stored(name), engine(**{**options, **changed})) == []


@installed
@pytest.mark.parametrize(
    ("name", "options"),
    [("rows-selected", {"rows": "reordered"}), ("static-cropped", {"record": True})],
)
def test_rows_that_are_reordered_and_caches_that_grow_pass(
    name: str, options: dict[str, object]
) -> None:
    """The same trace otherwise."""
    of = Trace(replace(stored(name).header, options=options), stored(name).ops)
    assert found(of, engine(**STORED[name][0])) == []
