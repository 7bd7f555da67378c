"""What was found in OpenVINO GenAI 2026.4 is found again by its stored traces, and only with the
cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachewitness._util.data import fixtures
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness._util.workers import cores
from cachewitness.core.events import Answer
from cachewitness.core.trace_format import Finish, GroupSpec, Layout, Level, Op, Submit, Trace
from cachewitness.core.validate import load_trace
from cachewitness.engines.registry import parse
from cachewitness.parity.answers.compare import runs
from cachewitness.report.expected import Expectations, shipped
from cachewitness.sessions.run.ceiling import ceiling
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.openvino_genai.kind import MODELS, configurations, further
from cachewitness.systems.openvino_genai.settings import KV_BLOCK, multiplier_of, settings_of
from cachewitness.workloads.answer_stories import write
from cachewitness.workloads.configurations import Configuration
from suites.support.parameters import constant, weights_in
from suites.support.real_openvino import engine, installed

FINDINGS = {
    "exact-replay": "answer-differs",
    "replay-of-a-short-answer": "engine-crashed",
    "replay-of-a-short-answer-whole": "answer-differs",
    "two-behind-one-tail": "answer-differs",
    "parted-behind-a-kv-block": "answer-differs",
    "preempted": "answer-differs",
    "more-than-the-pool-holds": "engine-crashed",
    "outgrown-together": "engine-crashed",
    "cancelled-inside-a-block": "answer-differs",
    "written-over": "answer-differs",
}
LIST = "openvino-genai-2026.4.txt"
RACE, TRIES = "in-the-same-step", 8
"""What differs from run to run: a state is read while it is written."""
OF_ATTENTION_TOO = ("two-behind-one-tail", "cancelled-inside-a-block")


def stored(name: str) -> Trace:
    return load_trace(fixtures() / "findings" / f"openvino-genai-{name}.jsonl")


@installed
@pytest.mark.parametrize(
    "model", ["qwen3-next", "lfm2", "llama", "qwen3-next-wide", "llama-narrow"]
)
def test_no_parameter_of_a_model_is_constant(model: str) -> None:
    """As its maker left it beside what was exported."""
    weights = Path(os.environ[MODELS]) / f"{model}.weights" / "model.safetensors"
    assert constant(weights_in(weights)) == []


@installed
@pytest.mark.parametrize("model", ["qwen3-next", "lfm2"])
@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_is_found_again_and_only_with_the_cache(name: str, model: str) -> None:
    """The anomaly that was written up; the same trace without the cache has none."""
    trace = stored(name)
    assert FINDINGS[name] in [
        finding.anomaly for finding in runs(trace, engine(f"model={model}")).findings
    ]
    assert runs(trace, engine(f"model={model},caching=off")).findings == []


@installed
@pytest.mark.parametrize("name", FINDINGS)
def test_attention_alone_has_two_of_them(name: str) -> None:
    """The others are of the states of linear attention."""
    found = {finding.anomaly for finding in runs(stored(name), engine("model=llama")).findings}
    assert found == ({"answer-differs"} if name in OF_ATTENTION_TOO else set())


@installed
@pytest.mark.skipif(cores() < 2, reason="needs two cores: one reads while the other writes")
def test_a_state_that_is_read_while_it_is_written_is_found_in_some_run_and_only_with_the_cache() -> (  # noqa: E501
    None
):
    """Attention alone is right, and so is the same trace where steps end as blocks do."""
    trace = stored(RACE)
    found = (
        finding.anomaly
        for _ in range(TRIES)
        for finding in runs(trace, engine("model=qwen3-next")).findings
    )
    assert next(found, "") == "answer-differs"
    aligned = Trace(
        msgspec.structs.replace(trace.header, options={"chunk": 7 * KV_BLOCK}), trace.ops
    )
    for other, options in (
        (aligned, "model=qwen3-next"),
        (trace, "model=llama"),
        (trace, "caching=off"),
    ):
        assert runs(other, engine(options)).findings == []


@installed
@pytest.mark.parametrize("story", ["conversations", "siblings"])
@pytest.mark.parametrize("configuration", further(), ids=lambda configuration: configuration.name)
def test_further_settings_restore_and_answer_right(
    configuration: Configuration, story: str
) -> None:
    """Prompts that are computed whole, steps of one token, an unset multiplier, pools that are
    set or grow.
    """
    trace = write(configuration.shape("answers"), story, 0)
    for model in ("lfm2", "llama"):
        result = runs(trace, engine(f"model={model}"))
        assert result.findings == [] and result.activity.hits > 0


@installed
def test_a_model_whose_states_are_heavy_derives_a_long_interval() -> None:
    """With the multiplier unset a prompt resumes at 102 KV blocks, and at no multiple of 8 in
    front of it.
    """
    header = msgspec.structs.replace(
        write(further()[3].shape("answers"), "idle", 0).header, pages=1024
    )
    asked = {"a": f"a:{102 * KV_BLOCK + 40}", "b": "a:3200 b:30", "c": "a:3265 c:30"}
    ops = [op for r, prompt in asked.items() for op in (Submit(r, prompt, generate=2), Finish(r))]
    result = runs(Trace(header, list[Op](ops)), engine("model=qwen3-next-wide"))
    restored = {
        event.r: event.restored for event in result.history.events if isinstance(event, Answer)
    }
    assert (result.findings, restored) == ([], {"a": 0, "b": 0, "c": 102 * KV_BLOCK})


@installed
def test_what_it_restores_is_told_exactly() -> None:
    """Hits are found at every block of the conversations, and none without the cache."""
    trace = write(configurations()[0].shape("answers"), "conversations", 0)
    cached, cold = (runs(trace, engine(options)) for options in ("model=qwen3-next", "caching=off"))
    assert (cached.findings, cold.activity.hits) == ([], 0) and cached.activity.hits >= 6


@installed
@pytest.mark.parametrize("model", ["llama", "lfm2"])
def test_a_cache_that_forgets_at_once_owes_something_to_who_asks_again(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer is right. The fault: the pipeline is built without its prefix cache."""
    from cachewitness.systems.openvino_genai import pipeline

    header = write(configurations()[0].shape("answers"), "idle", 0).header
    ops = [op for r in ("a", "b") for op in (Submit(r, "a:200", generate=2), Finish(r))]
    trace = Trace(header, list[Op](ops))
    spec = parse(f"openvino-genai:model={model}")
    assert runs(trace, spec).findings == []
    build = pipeline.genai.ContinuousBatchingPipeline

    def without_a_cache(model: str, config: Any, *more: Any) -> Any:
        config.enable_prefix_caching = False
        return build(model, config, *more)

    monkeypatch.setattr(pipeline.genai, "ContinuousBatchingPipeline", without_a_cache)
    assert [finding.anomaly for finding in runs(trace, spec).findings] == ["lost-repeat"]


@installed
@pytest.mark.parametrize("model", ["llama", "lfm2"])
@pytest.mark.parametrize("fewer", [0, 1])
def test_a_prompt_of_all_blocks_is_answered(
    model: str, fewer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the pipeline has a KV block less than it was given."""
    from cachewitness.systems.openvino_genai import pipeline

    build = pipeline.genai.ContinuousBatchingPipeline

    def opened(model: str, config: Any, *more: Any) -> Any:
        config.num_kv_blocks -= fewer
        built = build(model, config, *more)
        config.num_kv_blocks += fewer
        return built

    monkeypatch.setattr(pipeline.genai, "ContinuousBatchingPipeline", opened)
    spec = parse(f"openvino-genai:model={model}")
    trace = next(ceiling(spec, configurations()[0], "answers", 0))
    found = runs(trace, spec).findings
    assert {finding.anomaly for finding in found} == ({"answer-missing"} if fewer else set())


class KeyedByFirstBlock:
    """A pipeline that finds blocks by the first one of the prompt and their number: it goes on
    behind those of another prompt that begins alike. Of a replay nothing is wrong.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._blocks: dict[tuple[int, ...], list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def add_request(self, number: int, ids: Any, asked: Any) -> Any:
        import numpy as np
        import openvino

        tokens = ids.data[0].tolist()
        whole = (len(tokens) - 1) // KV_BLOCK * KV_BLOCK
        kept = self._blocks.setdefault(tuple(tokens[:KV_BLOCK]), tokens[:whole])[:whole]
        changed = np.asarray([[*kept, *tokens[len(kept) :]]], dtype=np.int64)
        return self._pipeline.add_request(number, openvino.Tensor(changed), asked)


@installed
@pytest.mark.parametrize("multiplier", [1, 4])
@pytest.mark.parametrize("fault", [False, True])
def test_a_wrong_hit_is_found_beside_the_list(
    multiplier: int, fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known is in both runs. With intervals of several blocks the list knows of keys that
    leave tokens out: what is wrong without such intervals too does not hide there.
    """
    from cachewitness.systems.openvino_genai import pipeline

    build = pipeline.genai.ContinuousBatchingPipeline

    def opened(model: str, config: Any, *more: Any) -> Any:
        built = build(model, config, *more)
        return KeyedByFirstBlock(built) if fault and config.enable_prefix_caching else built

    monkeypatch.setattr(pipeline.genai, "ContinuousBatchingPipeline", opened)
    known = Expectations(find_known=lambda version: shipped(version, [LIST]))

    def traces(configuration: Configuration, level: Level, seed: int) -> Iterator[Trace]:
        return (write(configuration.shape(level), name, seed) for name in ("replays", "parting"))

    (suite,) = [suite for suite in SUITES if suite.spread]
    short = replace(suite, traces=traces, spread=0, ceiling=False, large=())
    asked = [one for one in configurations() if multiplier_of(one.layout) == multiplier][:1]
    runner = Runner(parse("openvino-genai:model=lfm2"), asked, expected=known, attempts=0)
    report = runner.run([short])
    found = {(failure.id.partition("@")[0], bool(failure.known)) for failure in report.failures}
    assert found == {("answers:replays", True), *([("answers:parting", False)] if fault else [])}
    assert report.exit_code == fault


@pytest.mark.parametrize("name", [*FINDINGS, RACE])
def test_findings_are_stored_as_traces_of_a_layout_that_the_engine_takes(name: str) -> None:
    """They can be replayed by name."""
    assert multiplier_of(stored(name).header.layout) in (1, 2, 4)


@pytest.mark.parametrize(
    ("layout", "model", "message"),
    [
        (Layout("full", [GroupSpec("full", 32)]), "", "layout full does not fit"),
        (
            Layout("odd", [GroupSpec("full", 32), GroupSpec("recurrent", 33)]),
            "",
            "layout odd does not fit",
        ),
        (configurations()[0].layout, "model=gpt", "model is one of"),
        (configurations()[0].layout, "caching=maybe", "caching is on or off"),
        (configurations()[0].layout, "settings=all", "settings is usual or more"),
        (configurations()[0].layout, "models=nowhere", "ci/stage_openvino.sh makes them"),
    ],
)
def test_what_does_not_fit_is_one_line(
    layout: Layout, model: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is imported."""
    (tmp_path / "qwen3-next").mkdir()
    (tmp_path / "qwen3-next" / "openvino_model.xml").touch()
    monkeypatch.setenv(MODELS, str(tmp_path))
    monkeypatch.setitem(sys.modules, "cachewitness.systems.openvino_genai.pipeline", None)
    header = Trace(write(configurations()[0].shape("answers"), "idle", 0).header, []).header
    with pytest.raises(UsageError, match=message):
        parse(f"openvino-genai:{model}").open(msgspec.structs.replace(header, layout=layout))


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an engine that is missing, not a broken one."""
    (tmp_path / "qwen3-next").mkdir()
    (tmp_path / "qwen3-next" / "openvino_model.xml").touch()
    monkeypatch.setitem(sys.modules, "cachewitness.systems.openvino_genai.pipeline", None)
    header = write(configurations()[0].shape("answers"), "idle", 0).header
    with pytest.raises(EngineMissing, match=r"pip install 'cachewitness\[openvino\]'"):
        parse(f"openvino-genai:models={tmp_path}").open(header)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dynamic_split_fuse": "off"},
            "dynamic_split_fuse of a trace is true or false, not 'off'",
        ),
        (
            {"dynamic_split_fuse": False, "chunk": 64},
            "a prompt is computed in one step; leave the option chunk",
        ),
        (
            {"cache_interval_multiplier": 8},
            "cache_interval_multiplier of a trace is layout or unset, not 8",
        ),
        ({"pools": "large"}, "pools of a trace is fixed or dynamic, not 'large'"),
        (
            {"pools": "dynamic", "num_linear_attention_blocks": 4},
            "pools that grow have no number of states",
        ),
        (
            {"num_linear_attention_blocks": 0},
            "num_linear_attention_blocks of a trace is a number of at least 1, not 0",
        ),
        ({"max_num_seqs": True}, "max_num_seqs of a trace is a number of at least 1, not True"),
        ({"chunk": 0}, "chunk is a number of tokens, 1 or more, not 0"),
        ({"cache_size": 1}, "not cache_size"),
    ],
)
def test_an_option_of_a_trace_that_does_not_fit_is_one_line(
    options: dict[str, Any], message: str
) -> None:
    """Values that nothing is documented of are refused, and what would do nothing."""
    header = write(configurations()[0].shape("answers"), "idle", 0).header
    with pytest.raises(UsageError, match=message) as refused:
        settings_of(msgspec.structs.replace(header, options=options))
    assert "\n" not in str(refused.value)


def test_what_a_trace_does_not_set_is_left_as_it_is() -> None:
    """And what it sets reaches the pipeline's configuration."""
    header = write(configurations()[1].shape("answers"), "idle", 0).header
    assert settings_of(header) == (header.pages, 100, True, 2, 0, 16)
    assert settings_of(write(further()[1].shape("answers"), "idle", 0).header)[2:] == (
        False,
        2,
        0,
        2,
    )
    assert settings_of(write(further()[3].shape("answers"), "idle", 0).header)[1:] == (
        8192,
        True,
        0,
        0,
        16,
    )
    assert settings_of(write(further()[6].shape("answers"), "idle", 0).header)[0] == 0
