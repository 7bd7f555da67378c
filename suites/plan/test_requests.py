"""How many requests fit, by the rules of OpenVINO GenAI, Furiosa-LLM and TensorRT-Edge-LLM."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from cachewitness.cli import EXIT_USAGE, invoke
from cachewitness.systems.openvino_genai.reference.plan import Request, plan
from cachewitness.systems.tensorrt_edge.reference import plan as tensorrt_edge
from cachewitness_reference.openvino_genai.orchestrator import CacheOrchestrator
from cachewitness_reference.openvino_genai.sequence import Sequence
from cachewitness_reference.openvino_genai.sizing import Capacity

GIB = 2**30
MODEL = "qwen3.5-0.8b"


def results(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert invoke(["plan", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["results"]
    return found


def held(capacity: Capacity, size: int, tokens: int, *, caching: bool) -> int:
    """Return how many sequences of so many tokens the reference gives blocks to before a pool is
    empty.
    """
    caches = CacheOrchestrator(capacity, size, hybrid=True, caching=caching)
    count = 0
    while True:
        sequence = Sequence(f"s{count}", [count] * tokens, size)
        for manager in caches.managers.values():
            if manager.missing_blocks([sequence], 0, tokens) > manager.pool.num_free_blocks:
                return count
        for manager in caches.managers.values():
            manager.allocate(sequence, 0, tokens)
        count += 1


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("tokens", [31, 32, 33, 256, 257, 1000, 4096])
def test_openvino_holds_as_many_sequences_as_are_planned(tokens: int, caching: bool) -> None:
    """The reference's own pools take them in, and not one more."""
    options = {"num_kv_blocks": 1024, "enable_prefix_caching": caching, "max_num_seqs": 40}
    options |= {"cache_interval_multiplier": 8} if caching else {}
    answer = plan(Request(options, MODEL, request_tokens=tokens))
    numbers = {name: answer.value(name) for name in ("kv_blocks", "la_blocks")}
    interval = answer.value("interval_tokens") if caching else None
    capacity = Capacity(
        **numbers, kv_bytes=0, la_bytes=0, multiplier=None, interval=interval, dynamic=False
    )  # type: ignore[arg-type]
    assert answer.value("requests_running") == held(capacity, 32, tokens, caching=caching) > 0


def test_openvino_counts_whole_gib_and_nothing_of_a_cache_that_grows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = ["openvino", "--layout", MODEL, "--prefix-caching", "--request-tokens", "4096"]
    assert results(capsys, *base, "--memory", "2GiB") == results(
        capsys, *base, "--cache-size-gib", "2"
    )
    assert "requests_running" not in results(capsys, *base)
    for more, says in (
        (["--memory", "2GB"], "no whole number of GiB"),
        (
            ["--memory", "2GiB", "--cache-size-gib", "2"],
            "--memory and --cache-size-gib say the same",
        ),
    ):
        assert invoke(["plan", *base, *more]) == EXIT_USAGE
        assert says in capsys.readouterr().err


def test_furiosa_fits_requests_into_the_split_of_another_length(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Split for 8 192 tokens: the pool of windows is full first with shorter requests, the
    global pool with longer ones.
    """
    base = [
        "furiosa",
        "--layout",
        "gemma-3-27b",
        "--expected-average-seq-length",
        "8192",
        "--memory",
        "16GiB",
    ]
    same = results(capsys, *base, "--request-tokens", "8192")
    assert same["requests_running"] == same["sequences"] == 15
    short, long = (
        results(capsys, *base, "--request-tokens", tokens) for tokens in ("4096", "65536")
    )
    assert short["requests_running"] == min(7895 // 256, 1002 // 65) == 15
    assert long["requests_running"] == min(7895 // 4096, 1002 // 65) == 1
    assert results(capsys, *base[:-2], "--kv-gib", "16") == results(capsys, *base)
    assert invoke(["plan", *base, "--kv-gib", "16"]) == EXIT_USAGE
    assert "say the same" in capsys.readouterr().err
    assert invoke(["plan", *base, "--request-tokens", "131073"]) == EXIT_USAGE
    assert "--request-tokens: 131073 is more than 131072" in capsys.readouterr().err


@pytest.mark.parametrize("release", ["0.7", "0.10"])
def test_the_rows_that_fit_are_the_largest_batch_that_memory_holds(release: str) -> None:
    """A batch of that many rows weighs no more than the memory, and one row more does."""

    def total(rows: int) -> int:
        answer = tensorrt_edge.plan(tensorrt_edge.Request(MODEL, rows, 4000, release=release))
        return int(answer.value("total_bytes") or 0)

    for rows in (1, 4):
        answer = tensorrt_edge.plan(
            tensorrt_edge.Request(MODEL, rows, 4000, release=release, memory=GIB)
        )
        fit = int(answer.value("requests_running") or 0)
        assert total(fit) <= GIB < total(fit + 1)


def test_openvino_s_intervals_from_every_block_to_256(capsys: pytest.CaptureFixture[str]) -> None:
    """A larger multiplier leaves fewer states and more tokens; each row is the plan with that
    multiplier.
    """
    base = [
        "openvino",
        "--layout",
        MODEL,
        "--prefix-caching",
        "--memory",
        "2GiB",
        "--request-tokens",
        "4096",
    ]
    assert invoke(["plan", *base, "--intervals", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["intervals"]
    assert [row["multiplier"] for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128]
    for row in rows:
        one = results(capsys, *base, "--multiplier", str(row["multiplier"]))
        assert {name: one[name] for name in row if name in one} == {
            name: row[name] for name in row if name in one
        }
        interval = row["interval_tokens"]
        lost = [shared // 32 * 32 - shared // interval * interval for shared in range(1, 4097)]
        assert (row["lost_most_tokens"], row["lost_mean_tokens"]) == (
            max(lost),
            round(Fraction(sum(lost), 4096)),
        )
    assert invoke(["plan", "openvino", "--layout", MODEL, "--intervals"]) == EXIT_USAGE
    assert "--intervals: give --request-tokens" in capsys.readouterr().err
    assert invoke(["plan", *base[:-1], str(2**60), "--intervals"]) == EXIT_USAGE
    assert "are more than 65536 blocks of 32 tokens" in capsys.readouterr().err
