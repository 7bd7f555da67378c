"""`plan lmcache`: the document's steps 1 and 2, by release, and what it says of sparse models."""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.systems.lmcache.reference.engine import open_engine
from cachewitness.systems.lmcache.reference.plan import Request, plan
from cachewitness.workloads import layouts
from cachewitness.workloads.scenarios.shape import Script, Shape
from cachewitness_reference.lmcache.spec import RELEASES


@pytest.mark.parametrize(("layout", "tokens"), [("qwen3.5-0.8b", 544), ("qwen3.6-27b", 784)])
@pytest.mark.parametrize("release", ["0.4.7", "0.5.3", "0.5.4", "0.5.6"])
def test_n_and_what_follows_from_it(layout: str, tokens: int, release: str) -> None:
    """The table of the document: N, `--chunk-size` N, and a budget that both the rule of then
    and the one of now accept.
    """
    answer = plan(Request(layout, release=release))
    assert answer.value("unified_block_tokens") == answer.value("chunk_tokens") == tokens
    budget = answer.value("max_num_batched_tokens")
    assert isinstance(budget, int) and tokens <= budget < 2 * tokens
    bounded = release in ("0.4.7", "0.5.3")
    assert answer.value("max_num_batched_tokens_most") == (2 * tokens - 1 if bounded else None)


def test_the_two_commands_of_the_document() -> None:
    """As printed there for Qwen3.6-27B, with every flag that it calls required."""
    server, engine = plan(Request("qwen3.6-27b", release="0.5.3")).commands
    assert server == "lmcache server --chunk-size 784 --l1-size-gb 100 --eviction-policy LRU"
    assert engine.startswith("vllm serve Qwen/Qwen3.6-27B ")
    for flag in (
        "--enable-prefix-caching",
        "--mamba-cache-mode align",
        "--max-num-batched-tokens 784",
        '--kv-transfer-config \'{"kv_connector":"LMCacheMPConnector", "kv_role":"kv_both"}\'',
    ):
        assert flag in engine


def test_a_chunk_may_be_any_multiple_of_n() -> None:
    """Step 2, first rule."""
    answer = plan(Request("qwen3.5-0.8b", chunk_size=3 * 544))
    assert answer.value("chunk_tokens") == 1632
    assert "--chunk-size 1632 " in answer.commands[0]


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (
            Request("qwen3.6-27b", chunk_size=1000),
            "LMCache chunk size 1000 must be a multiple of 784",
        ),
        (
            Request("qwen3.6-27b", max_num_batched_tokens=1568, release="0.5.3"),
            "max_num_batched_tokens=1568",
        ),
        (Request("qwen3.6-27b", max_num_batched_tokens=783), "max_num_batched_tokens=783"),
        (Request("gemma-3-27b", max_num_batched_tokens=784), "--max-num-batched-tokens"),
        (Request("gemma-4-31b", chunk_size=48), "multiple of 32"),
        (Request("qwen3.6-27b", release="0.4.6"), "--release: '0.4.6'"),
    ],
    ids=lambda value: "" if isinstance(value, Request) else value,
)
def test_what_the_start_up_refuses_is_refused_here(request_: Request, named: str) -> None:
    """In LMCache's own words where it has some."""
    with pytest.raises(UsageError) as caught:
        plan(request_)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_two_blocks_in_a_step_are_accepted_from_0_5_4_on() -> None:
    """The upper bound is gone."""
    assert (
        plan(Request("qwen3.6-27b", max_num_batched_tokens=1568, release="0.5.4")).value(
            "max_num_batched_tokens"
        )
        == 1568
    )


@pytest.mark.parametrize(
    ("layout", "span", "chunk"),
    [
        ("gemma-3-27b", 16, 256),
        ("gemma-4-31b", 32, 256),
        ("gpt-oss-20b", 16, 256),
        ("deepseek-v4-flash", 256, 256),
        ("glm-5.2", 64, 256),
    ],
)
def test_without_states_the_chunk_is_a_multiple_of_every_block(
    layout: str, span: int, chunk: int
) -> None:
    """The default chunk of 256 fits all of them, as the recipes without `--chunk-size` show."""
    answer = plan(Request(layout))
    assert (answer.value("chunk_span_tokens"), answer.value("chunk_tokens")) == (span, chunk)


@pytest.mark.parametrize(
    ("layout", "release", "verdicts"),
    [
        ("deepseek-v4-flash", "0.5.3", {"validated", "unsupported", "supported"}),
        ("deepseek-v4-flash", "0.5.6", {"validated", "supported"}),
        ("glm-5.1", "0.4.7", {"validated", "unsupported", "supported"}),
        ("glm-5.2", "0.5.6", {"validated", "supported"}),
    ],
)
def test_both_statements_about_sparse_models_are_told(
    layout: str, release: str, verdicts: set[str]
) -> None:
    """The document validates them and calls their caches unsupported; 0.5.6 has dropped the
    second sentence.
    """
    answer = plan(Request(layout, release=release))
    assert set(str(answer.value("lmcache_says")).split(", ")) == verdicts
    contradiction = {line.name: line.how for line in answer.lines}["lmcache_says"]
    assert ("contradict" in contradiction) == ("unsupported" in verdicts)


def test_before_0_4_5_the_code_had_no_compressed_caches() -> None:
    """The statement that the code of a release supports them begins with the release that has
    the code.
    """
    statements = layouts.model("deepseek-v4-flash").statements
    assert {each.verdict for each in statements if each.holds_in("0.4.4")} == {
        "validated",
        "unsupported",
    }
    assert "supported" in {each.verdict for each in statements if each.holds_in("0.4.5")}


def header(layout: str, options: dict[str, Any]) -> TraceHeader:
    """Return the header of a run."""
    return (
        Script(Shape(layouts.load(layout), options, "scheduler", "lmcache"), "plan", "", "")
        .trace()
        .header
    )


@pytest.mark.parametrize("release", list(RELEASES))
@pytest.mark.parametrize("layout", layouts.models())
def test_what_a_plan_says_a_run_takes(layout: str, release: str) -> None:
    """Every layout and release: N is the block of the groups that a run has, and no start-up
    check refuses the two flags.
    """
    answer = plan(Request(layout, release=release))
    groups = layouts.load(layout).groups
    options: dict[str, Any] = {"chunk_size": answer.value("chunk_tokens"), "tier_pages": 4096}
    if any(group.kind == "recurrent" for group in groups):
        assert {group.block_size for group in groups} == {answer.value("unified_block_tokens")}
        options["max_num_batched_tokens"] = answer.value("max_num_batched_tokens")
    assert not [note for note in answer.notes if note.startswith("a run with")]
    open_engine(header(layout, options), {"release": release}).close()


@pytest.mark.parametrize(
    "given", [{"checkpoint_alignment": 64}, {"kernel_block": 128}], ids=["Hopper", "a larger block"]
)
def test_a_plan_for_other_kernels_says_that_a_run_has_the_layouts(given: dict[str, int]) -> None:
    """And the run refuses the other N, in LMCache's words."""
    answer = plan(Request("qwen3.5-0.8b", **given))
    (note,) = [note for note in answer.notes if note.startswith("a run with")]
    assert (
        "--layout qwen3.5-0.8b has blocks of 544 tokens" in note
        and "kernels that the layout names" in note
    )
    options = {"chunk_size": answer.value("chunk_tokens")}
    with pytest.raises(UsageError, match="must be a multiple of tokens_per_block 544"):
        open_engine(header("qwen3.5-0.8b", options), {})


def test_the_first_level_holds_so_many_chunks() -> None:
    """Qwen3.5 0.8B: 544 tokens of six layers of attention, and a state of 18 layers in 544 rows of
    2,000 bytes, the next multiple of 16 above 1,085,440 / 544. Llama 3.1 8B: tokens alone, on two
    ranks.
    """
    answer = plan(Request("qwen3.5-0.8b", l1_size_gb=10))
    chunk = 544 * 6 * 2048 + 18 * 544 * 2000
    assert answer.value("chunk_bytes") == chunk
    assert answer.value("l1_chunks") == 10 * 2**30 // chunk
    assert answer.value("l1_tokens") == 10 * 2**30 // chunk * 544
    assert "--l1-size-gb 10 " in answer.commands[0]
    llama = plan(Request("llama-3.1-8b", tensor_parallel_size=2))
    assert llama.value("chunk_bytes") == 256 * 32 * 4096
