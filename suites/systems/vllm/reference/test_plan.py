"""`plan vllm`: block sizes, snapshots kept and shares, against the published figures and
arithmetic of its own.
"""

from __future__ import annotations

import math

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.plan.grouping import layout_of
from cachewitness.plan.hybrid import hybrid_of, is_hybrid
from cachewitness.systems.vllm.reference.plan import Request, plan
from cachewitness.workloads import layouts
from cachewitness_reference.vllm import sizing
from cachewitness_reference.vllm.options import ConfigError
from cachewitness_reference.vllm.planning import Layer, groups_of
from cachewitness_reference.vllm.sizing import SequenceLengths


@pytest.mark.parametrize(
    ("layout", "options", "tokens"),
    [
        ("qwen3.5-0.8b", {}, 544),
        ("qwen3.6-27b", {}, 784),
        ("qwen3.5-0.8b", {"checkpoint_alignment": 64}, 576),
        ("qwen3.5-0.8b-hopper", {}, 576),
        ("qwen3.5-0.8b-hopper", {"checkpoint_alignment": 1}, 544),
        ("qwen3.6-27b", {"checkpoint_alignment": 64}, 832),
        ("qwen3-next-80b-a3b", {"checkpoint_alignment": 64}, 576),
        ("kimi-linear-48b-a3b", {}, 1920),
        ("kimi-linear-48b-a3b", {"tensor_parallel_size": 4}, 512),
        ("falcon-h1-0.5b", {}, 800),
    ],
)
def test_the_unified_block_size_is_the_published_one(
    layout: str, options: dict[str, int], tokens: int
) -> None:
    """544 and 784 are in LMCache's document, 512 in PR 45845's set-up (four ranks), the rest in
    the layout files.
    """
    assert plan(Request(layout, **options)).value("unified_block_tokens") == tokens


def test_two_ranks_of_kimi_linear_give_the_block_of_its_start_up_log() -> None:
    """Issue 28228 of vLLM: 960 tokens, the state padded by 1.89 %, before hybrids with MLA took
    multiples of 128.
    """
    hybrid = hybrid_of(layouts.model("kimi-linear-48b-a3b"), 2, "kimi")
    block = sizing.unified_block_size(hybrid.token_bytes, hybrid.state_bytes, 64)
    assert block == 960
    assert f"{100 * (block * hybrid.token_bytes / hybrid.state_bytes - 1):.2f}" == "1.89"


@pytest.mark.parametrize("alignment", [16, 64, 128])
@pytest.mark.parametrize("state", [1, 2047, 2048, 2049, 1_085_440, 3_207_168])
def test_a_block_holds_a_state_and_a_smaller_one_does_not(alignment: int, state: int) -> None:
    """The attention page is at least the state's, by as few steps as will do."""
    block = sizing.unified_block_size(2048, state, alignment)
    assert block % alignment == 0
    assert (block - alignment) * 2048 < state <= block * 2048


def test_dense_snapshots_take_80_percent_at_block_size_128() -> None:
    """PR 45845: Kimi-Linear on four ranks with blocks of 128; a state of 3.68 pages takes 4,
    beside 1 of attention.
    """
    answer = plan(
        Request(
            "kimi-linear-48b-a3b",
            "2048",
            block_size=128,
            tensor_parallel_size=4,
            prompt_tokens=65536,
        )
    )
    state = 3 * (3 * 32 * 128 // 4) * 2 + (32 // 4) * 128 * 128 * 4
    assert answer.value("state_bytes") == state == 542_720
    assert answer.value("page_bytes") == 128 * 576 * 2
    assert answer.value("pages_per_snapshot") == math.ceil(state / (128 * 576 * 2)) == 4
    assert answer.value("layer_dense_share") == pytest.approx(0.80)
    assert answer.value("pool_dense_share") == pytest.approx(12 / 13)
    assert any("raises it to 512" in note for note in answer.notes)


@pytest.mark.parametrize(("block", "share"), [(256, 2 / 3), (512, 1 / 2)])
def test_larger_blocks_are_less_affected(block: int, share: float) -> None:
    """PR 45845 says that 256 and 512 are unaffected: two pages and one beside one of attention."""
    answer = plan(
        Request(
            "kimi-linear-48b-a3b",
            "none",
            block_size=block,
            tensor_parallel_size=4,
            prompt_tokens=65536,
        )
    )
    assert answer.value("layer_dense_share") == pytest.approx(share)


@pytest.mark.parametrize(
    ("interval", "kept"), [("none", 512), ("0", 1), ("512", 128 + 1), ("2048", 32 + 1)]
)
def test_one_snapshot_is_kept_per_interval_and_one_at_the_replay_boundary(
    interval: str, kept: int
) -> None:
    """65 536 tokens, blocks of 128: the replay boundary 65 408 is no multiple of either
    interval.
    """
    answer = plan(
        Request(
            "kimi-linear-48b-a3b",
            interval,
            block_size=128,
            tensor_parallel_size=4,
            prompt_tokens=65536,
        )
    )
    assert answer.value("snapshots_kept") == kept
    assert answer.value("layer_kept_share") == pytest.approx(4 * kept / (4 * kept + 512))


def test_a_replay_boundary_on_the_interval_is_counted_once() -> None:
    """2 049 tokens end just behind the boundary 2 048, which is both."""
    assert sizing.kept_snapshots(SequenceLengths(2049, 0, 128), 128, 128, 2048) == (16, 1)


@pytest.mark.parametrize("chunk", [128, 300, 512, 4096])
def test_prefill_leaves_states_at_chunk_ends_and_decoding_at_every_boundary(chunk: int) -> None:
    """A prompt of 1 024 + 40 tokens with 300 generated; chunks are cut to blocks, the last one
    ends at the last boundary.
    """
    ends = {*range(chunk // 128 * 128, 1064, chunk // 128 * 128), 1024}
    ends = {end for end in ends if end <= 1024}
    decoded = {1152, 1280}
    written = sizing.snapshot_columns(SequenceLengths(1064, 300, chunk), 128)
    assert {128 * (column + 1) for column in written} == ends | decoded


@pytest.mark.parametrize(
    ("counts", "dealt"),
    [
        ([18, 6], [[6, 6, 6], [6]]),
        ([20, 7], [[7, 7, 6], [7]]),
        ([52, 10], [[9, 9, 9, 9, 8, 8], [10]]),
        ([12, 13], [[12], [13]]),
    ],
)
def test_layers_are_dealt_out_as_vllm_does(counts: list[int], dealt: list[list[int]]) -> None:
    """The rarest kind gives the size of a group, unless the other is less than half as numerous
    again.
    """
    layers = [
        Layer("recurrent" if kind == 0 else "full", 16, 64 if kind == 0 else 4, (kind,), states=1)
        for kind, number in enumerate(counts)
        for _ in range(number)
    ]
    sizes = [len(group.layers) for group in groups_of(layers)]
    assert sizes == [size for kind in dealt for size in kind]


@pytest.mark.parametrize(
    "layout", [name for name in layouts.models() if is_hybrid(layouts.model(name))]
)
def test_the_groups_of_a_layout_follow_from_its_model(layout: str) -> None:
    """The trace layouts of hybrids are what the arithmetic makes of the model, with the kernels
    that the file names.
    """
    answer = plan(Request(layout))
    groups = layouts.load(layout).groups
    assert {group.block_size for group in groups} == {answer.value("unified_block_tokens")}
    for kind, name in (("recurrent", "recurrent_groups"), ("full", "attention_groups")):
        assert answer.value(name) == sum(group.kind == kind for group in groups)
    planned = layout_of(layouts.model(layout), layout).groups
    assert sorted(planned, key=str) == sorted(groups, key=str)


def test_window_tails_are_kept_once_per_interval() -> None:
    """Gemma 3, blocks of 16: a hit needs 64 of them; 32 intervals and the tail at 65 520 that
    starts a block earlier.
    """
    answer = plan(Request("gemma-3-27b", "2048", prompt_tokens=65536))
    assert answer.value("window_1024_16_blocks") == 4096
    assert answer.value("window_1024_16_blocks_kept") == 32 * 64 + 1


@pytest.mark.parametrize(
    ("release", "interval"),
    [("0.22", "dense"), ("0.24", "dense"), ("0.28", "dense"), ("0.29", 0), ("0.33", 0)],
)
def test_left_alone_retention_is_what_the_release_does(release: str, interval: int | str) -> None:
    """Dense up to 0.28, only reachable boundaries from 0.29 on."""
    assert (
        plan(Request("qwen3.5-0.8b", release=release)).value("retention_interval_tokens")
        == interval
    )


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (Request("qwen3.5-0.8b", "2048"), "retention_interval (2048) must be a multiple of 544"),
        (Request("qwen3.5-0.8b", "-1"), "--retention-interval: '-1'"),
        (Request("qwen3.5-0.8b", "544", release="0.23"), "--retention-interval: release 0.23"),
        (Request("qwen3.5-0.8b", release="0.21"), "--release: '0.21'"),
        (Request("qwen3.5-0.8b", tensor_parallel_size=3), "--tensor-parallel-size"),
        (Request("falcon-h1-0.5b", tensor_parallel_size=16), "--tensor-parallel-size"),
        (Request("qwen3.5-0.8b", kv_cache_dtype="octave_k3v4"), "--kv-cache-dtype octave_k3v4"),
        (
            Request("qwen3.5-0.8b", speculative_method="eagle3", num_speculative_tokens=2),
            "--speculative-config: the layers of method 'eagle3'",
        ),
        (Request("qwen3.5-0.8b", prompt_tokens=2**49), "--prompt-tokens"),
        (Request("qwen3.5-0.8b", block_size=2**58), "page_bytes"),
        (Request("qwen3.5-0.8b", kernel_block=2**62, checkpoint_alignment=3), "alignment"),
        (Request("qwen3.5-0.8b", chunk_tokens=0), "chunk_tokens (0)"),
        (Request("gemma-3-27b", block_size=24), "--block-size: 24 is no multiple of the kernel's"),
        (Request("deepseek-v4-flash", "100"), "retention_interval (100) must be a multiple of 256"),
    ],
    ids=lambda value: "" if isinstance(value, Request) else value,
)
def test_what_does_not_fit_is_refused_by_name(request_: Request, named: str) -> None:
    """One line with the option or the field."""
    with pytest.raises(UsageError) as caught:
        plan(request_)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_the_arithmetic_refuses_numbers_that_are_none() -> None:
    """The policy's own functions check what they are given."""
    with pytest.raises(ConfigError, match="attention_token_bytes"):
        sizing.unified_block_size(0, 1, 16)
    with pytest.raises(ConfigError, match="retention_interval"):
        sizing.kept_snapshots(SequenceLengths(100, 0, 16), 16, 16, -16)
