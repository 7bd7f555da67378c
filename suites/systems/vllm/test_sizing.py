"""vLLM's own sizing of named models: what it makes of each, beside our plan, and that traces run on
it.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachewitness._util.data import fixtures
from cachewitness._util.errors import UsageError
from cachewitness.core.driving import described, drive
from cachewitness.core.trace_format import (
    GroupSpec,
    Layout,
    Level,
    Submit,
    Trace,
    TraceHeader,
    length_of,
)
from cachewitness.engines import policy as policies
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.engines.source_patch import Patches
from cachewitness.plan.layout_file import text_of
from cachewitness.sessions.run.ceiling import ceiling
from cachewitness.systems.vllm.declared import read_options
from cachewitness.systems.vllm.reference.plan import Request, plan
from cachewitness.systems.vllm.sizing import ENOUGH, PAGES, Sized, size
from cachewitness.systems.vllm.source import load
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from suites.support.model_configs import PUBLISHED, written
from suites.support.real_vllm import REAL, SOURCE

MODELS = layouts.models()
ONE_GROUP = {"glm-5.1": 78 + 78, "glm-5.2": 78 + 21}
"""Models of which the layout has two groups on purpose, where vLLM makes one of so many layers
(their files say why)."""
CONFIGURED = {
    entry["model"]: entry["fields"]
    for entry in tomllib.loads((fixtures() / "published_configs.toml").read_text())["config"]
}
STANDS_FOR = {"qwen4_exp_text": {"model_type": "qwen3_next", "full_attention_interval": 4}}
"""Configurations without a layout whose attention and states are another type's: Qwen3.8-Flash-Next
without the keys of its indexer."""
NOT_SIZED = {
    "Phi-4-mini-flash": "no release of vLLM since 0.10.2 has its rule",
    "DeepSeek-V4-Flash": "its layout is one of the models",
    "Kimi K3": "which of its layers have a state is not worked out",
    "Mamba-Codestral-7B": "vLLM caches no prefix of a model without attention",
}
CAPACITY = [*MODELS, *(name for name in CONFIGURED if name not in NOT_SIZED)]
EXACT = ("qwen3.5-0.8b", "glm-5.1", "Qwen3.8-Flash-Next")
"""Some that use every block which their check counts; of a window it counts more than is used."""
MEBIBYTES = 40 << 10
CHECKPOINTS_SINCE = (0, 33)
"""Before, the prefill kernel's grid of checkpoints does not raise the block."""


def sized(name: str, memory: str = PAGES, pages: int = 64, **options: Any) -> Sized:
    """Return what vLLM makes of a model."""
    header = TraceHeader(
        "t",
        layouts.load(name),
        pages,
        level="scheduler",
        options={"max_model_len": 1 << 20, **options},
    )
    source = load(SOURCE)
    return size(source, header, read_options(header, source), None, memory)


def sized_from(path: Path, memory: str = PAGES, **options: Any) -> Sized:
    """Return what vLLM makes of the model of a layout file."""
    layout = msgspec.structs.replace(layouts.load(path), name=str(path))
    header = TraceHeader(
        "t", layout, 64, level="scheduler", options={"max_model_len": 1 << 20, **options}
    )
    source = load(SOURCE)
    return size(source, header, read_options(header, source), None, memory)


def configured(folder: Path, fields: dict[str, Any]) -> Layout:
    """Return the layout of a configuration, under the name of a file of it."""
    path = folder / "mine.toml"
    stands_for = STANDS_FOR.get(fields["model_type"], {})
    path.write_text(text_of(written(folder, fields | stands_for)))
    return msgspec.structs.replace(layouts.load(path), name=str(path))


def _plain(groups: list[GroupSpec]) -> list[tuple[str, int, int, int, int]]:
    return [
        (group.kind, group.block_size, group.window, group.chunk, group.layers) for group in groups
    ]


@pytest.mark.parametrize("name", [pytest.param(name, marks=REAL) for name in MODELS])
def test_groups_blocks_and_windows_are_those_of_the_layout(name: str) -> None:
    """The files of the layouts were worked out by hand from vLLM's rules; its code has to come
    to the same.
    """
    release = load(SOURCE).release
    found = sized(name)
    expected = _plain(layouts.load(name).groups)
    if (
        layouts.model(name).checkpoint_alignment > 1
        and release is not None
        and release < CHECKPOINTS_SINCE
    ):
        expected = _plain(layouts.load(name.removesuffix("-hopper")).groups)
    if name in ONE_GROUP:
        expected = [("full", 64, 0, 0, ONE_GROUP[name])]
    assert _plain(found.header.layout.groups) == expected
    assert found.header.pages == found.config.num_blocks == 64


@pytest.mark.parametrize("name", [pytest.param(name, marks=REAL) for name in PUBLISHED])
def test_groups_of_a_configuration_are_those_that_vllm_makes(name: str, tmp_path: Path) -> None:
    """The layout that `plan layout` writes, beside vLLM's own grouping of the model in it."""
    path = tmp_path / "mine.toml"
    path.write_text(text_of(written(tmp_path, PUBLISHED[name])))
    assert _plain(sized_from(path).header.layout.groups) == _plain(layouts.load(path).groups)


@pytest.mark.parametrize("name", [pytest.param(name, marks=REAL) for name in PUBLISHED])
def test_requests_that_fit_are_those_that_vllm_counts(name: str, tmp_path: Path) -> None:
    """`plan vllm --memory`, beside vLLM's own blocks and the maximum concurrency that it logs
    when it starts.

    The adapter describes a layer of Mamba-2 as vLLM did before 0.32, without the block for a
    checkpoint inside a prefill; with it `test_plan_drawn.py` compares.
    """
    config = written(tmp_path, PUBLISHED[name])
    path = tmp_path / "mine.toml"
    path.write_text(text_of(config))
    found = sized_from(path, str(MEBIBYTES), max_model_len=8192)
    length = found.options.max_model_len
    in_flight = found.whole.max_in_flight_tokens
    answer = plan(
        Request(
            str(config),
            prompt_tokens=length,
            memory=MEBIBYTES << 20,
            in_flight_tokens=in_flight,
            release="0.31",
        )
    )
    assert answer.value("pool_blocks") == found.config.num_blocks
    counted = getattr(found.whole.cache_config, "kv_cache_max_concurrency", None)
    assert answer.value("concurrency") == (
        counted
        or load(SOURCE).utils.get_max_concurrency_for_kv_cache_config(found.whole, found.config)
    )


@pytest.mark.parametrize("name", [pytest.param("gemma-4-31b", marks=REAL)])
def test_pages_that_are_not_unified_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of vLLM's rules taken out the comparison above fails, or vLLM itself refuses."""
    utils = "vllm.v1.core.kv_cache_utils"
    planning = (
        utils
        if hasattr(load(SOURCE).utils, "get_kv_cache_configs")
        else "vllm.v1.core.kv_cache_planning"
    )
    monkeypatch.setattr(f"{planning}.unify_kv_cache_spec_page_size", lambda specs: specs)
    try:
        found = _plain(sized(name).header.layout.groups)
    except UsageError:
        found = []
    assert found != _plain(layouts.load(name).groups)


@pytest.mark.parametrize(
    "name", [pytest.param("qwen3.6-27b", marks=REAL), pytest.param("falcon-h1-0.5b", marks=REAL)]
)
def test_our_plan_of_a_hybrid_comes_to_the_same_blocks(name: str) -> None:
    """`cachewitness plan vllm` and vLLM's own functions, from the same numbers of the model."""
    lines = {line.name: line.value for line in plan(Request(name)).lines}
    groups = sized(name).header.layout.groups
    kinds = [group.kind for group in groups]
    assert {group.block_size for group in groups} == {lines["unified_block_tokens"]}
    assert (
        kinds.count("recurrent") == lines["recurrent_groups"]
        and kinds.count("full") == lines["attention_groups"]
    )


@pytest.mark.parametrize("name", [pytest.param("gpt-oss-20b", marks=REAL)])
def test_memory_becomes_blocks_and_the_longest_request(name: str) -> None:
    """A block is 16 tokens in 12 layers of 8 heads of 64, twice, in 2 bytes: 393,216 bytes."""
    few = sized(name, "64")
    many = sized(name, "128")
    assert (few.header.pages, many.header.pages) == ((64 << 20) // 393_216, (128 << 20) // 393_216)
    assert 0 < few.options.max_model_len < many.options.max_model_len
    with pytest.raises(UsageError, match=f"say `pages`, or a number of MiB up to {ENOUGH}"):
        sized(name, "much")


@pytest.mark.parametrize("name", [pytest.param("gemma-3-27b", marks=REAL)])
def test_vllm_says_which_group_a_drafter_is_in(name: str) -> None:
    """The drafter's layer joins full attention, which alone gives a block back; windows do not."""
    if load(SOURCE).release != CHECKPOINTS_SINCE:
        with pytest.raises(UsageError, match="is_draft"):
            sized(name, use_eagle=True)
        return
    found = sized(name, use_eagle=True)
    marked = [found.header.layout.groups[index] for index in found.options.eagle_groups]
    assert [group.kind for group in marked] == ["full"]
    assert sum(group.layers for group in found.header.layout.groups) == 62 + 1


@pytest.mark.parametrize("name", [pytest.param("full-mamba", marks=REAL)])
def test_a_layout_that_is_of_no_model_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no table `model`"):
        sized(name)


@pytest.mark.parametrize("level", ["manager", "scheduler"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=REAL) for name in MODELS])
def test_traces_run_on_what_came_out(name: str, level: Level) -> None:
    """Random work on vLLM's own groups passes, with hits, at both levels."""
    configuration: Configuration = policies.get("vllm").layouts.variants(layouts.load(name))[0]
    trace = random_trace(configuration.shape(level), 0, withdraw=False)
    result = drive(trace, parse(f"vllm:source={SOURCE},sized=pages").open(trace.header))
    assert [finding.sentence for finding in result.findings] == []
    assert result.activity.hits
    assert result.history.header.pools[0].pages == trace.header.pages


def longest(spec: EngineSpec, name: str, drafts: int, folder: Path) -> tuple[Trace, int]:
    """Return prompts of a token less than a configuration's longest, of that length and of one
    more, for the smallest pool whose start-up check accepts it, and the length.
    """
    layout = layouts.load(name) if name in MODELS else configured(folder, CONFIGURED[name])
    options = {"retention_interval": 0, "num_speculative_tokens": drafts}
    trace = next(ceiling(spec, Configuration(layout, options), "scheduler", 0))
    return trace, described(spec.open(trace.header), trace.header).rules.max_prompt


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("name", [pytest.param(name, marks=REAL) for name in CAPACITY])
def test_the_longest_prompt_that_vllm_accepts_for_a_pool_runs_to_its_end(
    name: str, drafts: int, tmp_path: Path
) -> None:
    """Its own check at the start says how long that is."""
    spec = parse(f"vllm:source={SOURCE},sized=pages")
    trace, most = longest(spec, name, drafts, tmp_path)
    asked = {length_of(op.prompt) - most for op in trace.ops if isinstance(op, Submit)}
    assert asked == {-1, 0, 1}
    assert [finding.sentence for finding in drive(trace, spec.open(trace.header)).findings] == []


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("name", [pytest.param(name, marks=REAL) for name in EXACT])
def test_a_check_that_counts_the_block_which_the_pool_sets_aside_is_found(
    name: str, drafts: int, tmp_path: Path
) -> None:
    spec = parse(f"vllm:source={SOURCE},sized=pages")
    load(SOURCE)
    patches = Patches()
    patches.text(
        "v1.core.kv_cache_planning",
        "",
        "get_kv_cache_configs",
        "avail_mem - _pool_bytes_per_block_from_builder(builder, vllm_config, groups) if groups",
        "avail_mem if groups",
    )
    try:
        trace, _ = longest(spec, name, drafts, tmp_path)
        findings = drive(trace, spec.open(trace.header)).findings
    finally:
        patches.undo()
    assert {finding.anomaly for finding in findings} == {"no-progress"}


def test_every_configuration_has_a_test_of_what_it_promises_or_a_reason_why_not(
    tmp_path: Path,
) -> None:
    """Neither list names a configuration that has become one of the other."""
    refused = set()
    for name, fields in CONFIGURED.items():
        try:
            configured(tmp_path, fields)
        except UsageError:
            refused.add(name)
    assert refused == set(NOT_SIZED)
