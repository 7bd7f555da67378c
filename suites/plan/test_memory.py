"""`plan vllm --memory`, `--intervals`, `--chart`: requests that fit, and what a retention
interval keeps and costs.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import EXIT_USAGE, invoke
from cachewitness.plan.lost import lost_tokens
from cachewitness.systems.vllm.reference.plan import Request, plan
from cachewitness_reference.vllm.pool import Group, Kept, kept
from cachewitness_reference.vllm.sizing import SequenceLengths, window_hits
from suites.support.vllm_served import boundaries, scheduler, serve

GIB = 2**30
NEXT = "qwen3-next-80b-a3b"


def test_requests_of_a_hybrid_by_hand() -> None:
    """12 layers a group of pages of 544 x 2 048 bytes; 8 192 tokens are 16 blocks of attention,
    and two states in 3 groups.
    """
    answer = plan(Request(NEXT, prompt_tokens=8192, memory=40 * GIB))
    assert answer.value("pool_block_bytes") == 12 * 544 * 2048
    assert answer.value("pool_blocks") == 40 * GIB // (12 * 544 * 2048) == 3212
    assert answer.value("request_blocks") == 16 + 3 * 2
    assert answer.value("concurrency") == 3212 / 22
    assert answer.value("requests_running") == 3211 // 22
    # A finished request leaves 15 full blocks, and in each recurrent group one state, or with dense
    # retention 15.
    assert (
        answer.value("cached_request_blocks") == 15 + 3
        and answer.value("requests_cached") == 3211 // 18
    )
    assert (
        answer.value("cached_dense_request_blocks") == 15 * 4
        and answer.value("requests_dense_cached") == 3211 // 60
    )


@pytest.mark.parametrize(
    ("tokens", "hittable"),
    [(543, "nothing of one can be hit (hits end every 544 tokens)"), (544, "finished ones stay")],
)
def test_who_is_shorter_than_the_first_place_where_a_hit_ends_is_told_so(
    tokens: int, hittable: str
) -> None:
    """vllm-project/vllm#48401, #40696: such a server caches prefixes, and none is ever hit."""
    answer = plan(Request(NEXT, prompt_tokens=tokens, memory=40 * GIB))
    assert hittable in answer.answer
    assert (answer.value("requests_cached") == 0) == (tokens < 544)


def test_requests_of_windows_by_hand() -> None:
    """Two batches of 2 048 tokens are in flight. A window of 128 holds 127 tokens more, in 264
    blocks and one more; 12 layers of 32 KiB.
    """
    answer = plan(Request("gpt-oss-20b", prompt_tokens=8192, memory=GIB))
    assert answer.value("pool_blocks") == GIB // (12 * 32768)
    assert answer.value("request_blocks") == 8192 // 16 + (127 + 4096 + 15) // 16 + 1
    few = plan(Request("gpt-oss-20b", prompt_tokens=8192, memory=GIB, in_flight_tokens=16))
    assert few.value("request_blocks") == 512 + (127 + 16 + 15) // 16 + 1


def test_ranks_divide_the_heads_and_keep_one_at_least() -> None:
    """8 heads of 64: half the bytes on two ranks, an eighth on eight, and no less on sixteen."""
    whole = plan(Request("gpt-oss-20b", memory=GIB)).value("pool_block_bytes")
    for ranks, share in ((1, 1), (2, 2), (8, 8), (16, 8)):
        answer = plan(Request("gpt-oss-20b", memory=GIB, tensor_parallel_size=ranks))
        assert answer.value("pool_block_bytes") == 12 * 32768 // share == int(whole or 0) // share
    with pytest.raises(
        UsageError, match="--tensor-parallel-size: 8 KV heads cannot be divided by 3"
    ):
        plan(Request("gpt-oss-20b", memory=GIB, tensor_parallel_size=3))


def test_a_shared_beginning_is_held_once() -> None:
    """2 048 tokens are three blocks of 544; from 0.26 on the second request keeps the boundary,
    before it is what is kept.
    """
    answer = plan(Request(NEXT, prompt_tokens=8192, memory=40 * GIB, shared_prefix=2048))
    assert (answer.value("shared_hit_tokens"), answer.value("shared_blocks")) == (3 * 544, 3)
    assert answer.value("requests_running_shared") == (3212 - 1 - 3) // (22 - 3)
    sparse = plan(
        Request(NEXT, "0", prompt_tokens=8192, memory=40 * GIB, shared_prefix=2048, release="0.25")
    )
    assert sparse.value("shared_hit_tokens") == 0
    assert sparse.value("requests_running_shared") == sparse.value("requests_running")


def test_memory_in_which_no_request_fits_is_told() -> None:
    answer = plan(Request(NEXT, prompt_tokens=8192, memory=GIB // 8))
    assert answer.value("requests_running") == 0
    assert any("vLLM does not start with --max-model-len 8192" in note for note in answer.notes)
    assert plan(Request(NEXT, prompt_tokens=8192, memory=1)).value("pool_blocks") == 0


FULL = {"kind": "full", "block_size": 16}
GROUPS = {
    "states": [FULL, {"kind": "recurrent", "block_size": 16}],
    "windows": [FULL, {"kind": "sliding", "block_size": 16, "window": 32}],
    "windows of one block": [FULL, {"kind": "sliding", "block_size": 16, "window": 17}],
}
PROMPT = list(range(1000, 1200))
GENERATED = 41


def planned(name: str, interval: int | None) -> Kept:
    groups = [Group(spec["kind"], 16, 1, spec.get("window", 0)) for spec in GROUPS[name]]
    return kept(groups, SequenceLengths(len(PROMPT), GENERATED, 16), interval)


@pytest.mark.parametrize("interval", [None, 0, 16, 32, 64, 128])
@pytest.mark.parametrize("name", GROUPS)
def test_what_is_kept_and_hit_is_what_the_reference_keeps_and_hits(
    name: str, interval: int | None
) -> None:
    """A request is served, then one that shares a beginning of some length: its hit ends at the
    last planned boundary.
    """
    plan_of = planned(name, interval)
    cold = scheduler(GROUPS[name], retention_interval=interval)
    serve(cold, "cold", PROMPT, generate=GENERATED)
    assert plan_of.blocks == len(boundaries(cold, 0)) + len(boundaries(cold, 1))
    for shared in range(1, len(PROMPT) + 1, 13):
        engine = scheduler(GROUPS[name], retention_interval=interval)
        serve(engine, "cold", PROMPT, generate=GENERATED)
        hit, _ = serve(engine, "later", PROMPT[:shared] + [5] * 60)
        assert hit == max((end for end in plan_of.hits if end <= shared), default=0), shared


def test_what_an_interval_loses_is_counted_over_every_length() -> None:
    """The mean and the maximum over all lengths of a shared beginning, counted one by one."""
    for name in GROUPS:
        dense = planned(name, None).hits
        for interval in (0, 32, 64, 128):
            hits = planned(name, interval).hits
            lost = [
                max((end for end in dense if end <= shared), default=0)
                - max((end for end in hits if end <= shared), default=0)
                for shared in range(1, 241)
            ]
            assert lost_tokens(dense, hits, 240) == (max(lost), Fraction(sum(lost), 240))
    assert lost_tokens([], [], 240) == (0, 0)


def test_a_hit_of_a_window_needs_all_its_blocks_or_the_beginning() -> None:
    """Blocks of 16 and a window of 33: two blocks; the first block alone reaches back to the
    beginning.
    """
    assert window_hits([True, False, True, True, True, False], 16, 33, 16) == [16, 64, 80]
    assert window_hits([True, False, True, True, True, False], 16, 33, 32) == [64]


def rows(request: Request) -> list[dict[str, Any]]:
    answer = plan(request)
    found: list[dict[str, Any]] = answer.as_json()["tables"]["intervals"]
    return found


def test_the_table_goes_from_dense_to_the_replay_boundary_alone() -> None:
    """Dense is 15 blocks in each of 4 groups; every doubling halves the states, and the last row
    keeps one in each group.
    """
    found = rows(Request(NEXT, prompt_tokens=8192, intervals=True, memory=40 * GIB))
    assert [row["interval"] for row in found] == ["none", "544", "1088", "2176", "4352", "0"]
    assert [row["request_blocks"] for row in found] == [
        60,
        60,
        15 + 3 * 8,
        15 + 3 * 4,
        15 + 3 * 2,
        18,
    ]
    assert [row["requests_cached"] for row in found] == [
        3211 // row["request_blocks"] for row in found
    ]
    assert [row["lost_most_tokens"] for row in found] == [0, 0, 544, 3 * 544, 7 * 544, 14 * 544]
    assert found[0]["kept_share"] == 1 and found[-1]["kept_share"] == 18 / 60


def test_intervals_below_a_window_are_told_once() -> None:
    found = rows(Request("gemma-3-27b", prompt_tokens=32768, intervals=True))
    assert [row["interval"] for row in found][:3] == ["none", "1024", "2048"]
    assert "requests_cached" not in found[0]


def test_the_chart_is_drawn_and_says_what_it_is_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chart.svg"
    arguments = ["plan", "vllm", "--layout", NEXT, "--request-tokens", "8192", "--chart", str(path)]
    assert invoke(arguments) == 0
    text = path.read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert (
        "qwen3-next-80b-a3b: 8,192 tokens" in text
        and text.count("<polyline") == 3
        and ">2176<" in text
    )
    assert f"note: the chart is in {path}" in capsys.readouterr().out
    assert invoke([*arguments[:-1], str(tmp_path / "gone" / "chart.svg")]) == EXIT_USAGE
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "amount"),
    [
        ("40GiB", 40 * GIB),
        ("40 GB", 40 * 10**9),
        ("0.5GiB", GIB // 2),
        ("1048576", 2**20),
        ("3B", 3),
        ("80kB", 80_000),
        ("80G", 80 * GIB),
        ("80g", 80 * 10**9),
    ],
)
def test_memory_is_a_number_and_a_unit(
    given: str, amount: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["plan", "vllm", "--layout", NEXT, "--memory", given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["memory_bytes"] == amount


@pytest.mark.parametrize(
    "given",
    ["much", "-1GiB", "0", "1e9", "nan", "40GiBB", "0.5G", "9" * 19, "99999PiB", "٤GiB", ""],
)
def test_what_is_no_memory_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["plan", "vllm", "--layout", NEXT, f"--memory={given}"]) == EXIT_USAGE
    assert "'--memory'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request(NEXT, shared_prefix=100), "--shared-prefix: says nothing without --memory"),
        (
            Request(NEXT, prompt_tokens=100, memory=GIB, shared_prefix=100),
            "--shared-prefix: 100 tokens are not fewer",
        ),
        (
            Request("deepseek-v4-flash", memory=GIB),
            "compressed vectors lie in blocks that vLLM packs by a rule of their own",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(request_: Request, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(request_)
