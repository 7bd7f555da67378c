"""What a real OpenVINO GenAI derives from a configuration, compared with the published vectors
and with our formulas.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cachewitness.engines.registry import parse
from cachewitness.systems.openvino_genai import capacity, kind
from cachewitness.systems.openvino_genai.kind import MODELS, SIZED
from cachewitness.vectors.consume import Consumed, consume
from cachewitness_reference.openvino_genai.sizing import initial_tokens, target_blocks
from suites.support.published_vectors import files
from suites.support.real_openvino import installed

KV, LA = 8192, 835584
"""Bytes of the blocks of which the vectors tell."""
REFUSED = (
    "Check failed: SchedulerConfig cache_interval_multiplier must be greater than 0 when prefix"
    " caching is enabled"
)


def consumed(model: str) -> Consumed:
    return consume(files()["openvino_genai", "sizing"], parse(f"openvino-genai:model={model}"))


@installed
@pytest.mark.parametrize(("model", "valid", "invalid"), [(SIZED[0], 29, 6), (SIZED[1], 2, 1)])
def test_a_real_pipeline_derives_what_the_reference_does(
    model: str, valid: int, invalid: int
) -> None:
    """Blocks of both pools, their bytes, the interval at which prompts resume, and what is
    refused in which words.
    """
    came = consumed(model)
    assert came.failures == [] and came.passed == came.asked == {"valid": valid, "invalid": invalid}


@installed
@pytest.mark.parametrize("prompt", [1, 40, 1000])
def test_pools_that_grow_begin_with_room_for_the_first_request(prompt: int) -> None:
    """As many blocks as our formula says: twice the prompt, or all that the request may become."""
    model = str(Path(os.environ[MODELS]) / SIZED[0])
    measured = capacity.asked(
        model, {"enable_prefix_caching": True, "cache_interval_multiplier": 8}, prompt=prompt
    )
    tokens = initial_tokens(prompt, 2)
    kv, la = (target_blocks([(tokens, 1)], size) for size in (32, 256))
    assert (measured["bytes"], measured["states"]) == (kv * KV + la * LA, la)


class Pools:
    """Stands in for the process that asks a pipeline. `rounded` says how a started interval is
    counted.
    """

    def __init__(self, rounded: int) -> None:
        self.rounded = rounded

    def __call__(
        self, model: str, fields: Mapping[str, Any], *, prompt: int = 1, probe: int = 0
    ) -> dict[str, Any]:
        multiplier = fields.get("cache_interval_multiplier", 102)
        if multiplier == 0:
            return {"refused": REFUSED}
        kv = fields.get("num_kv_blocks", 0)
        la = fields.get("num_linear_attention_blocks") or fields.get("max_num_seqs", 256)
        if fields.get("enable_prefix_caching") and "num_linear_attention_blocks" not in fields:
            la = (kv + (multiplier - 1) * self.rounded) // multiplier
        return {
            "bytes": kv * KV + la * LA,
            "states": la,
            "grown": kv * KV + la * LA,
            "interval": 32 * multiplier,
        }


@pytest.fixture
def standing_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let a stand-in be asked instead of a pipeline."""
    (tmp_path / SIZED[0]).mkdir()
    (tmp_path / SIZED[0] / "openvino_model.xml").touch()
    monkeypatch.setenv(MODELS, str(tmp_path))
    monkeypatch.setattr(kind, "needs", lambda *_: None)
    return monkeypatch


def explicit(came: Consumed) -> list[str]:
    return [
        failed.vector.id
        for failed in came.failures
        if failed.vector.id.startswith("sizing/explicit/")
    ]


def test_a_pool_that_leaves_out_a_started_interval_is_found(
    standing_in: pytest.MonkeyPatch,
) -> None:
    """It rounds down; rounded up every question of explicit blocks passes."""
    standing_in.setattr(capacity, "asked", Pools(1))
    right = consumed(SIZED[0])
    standing_in.setattr(capacity, "asked", Pools(0))
    wrong = consumed(SIZED[0])
    assert explicit(right) == [] and right.passed["invalid"] >= 1
    assert {"sizing/explicit/9-by-8", "sizing/explicit/1024-by-3"} <= set(explicit(wrong))


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("sys.exit(3)", "ended with 3"),
        ("os.kill(os.getpid(), 11)", "ended with -11"),
        ("print('garbage')", "ended with 0"),
        ("print('[1]')", r"printed \[1\]"),
        ("time.sleep(60)", "gave no answer"),
    ],
)
def test_a_pipeline_that_dies_or_hangs_is_one_line(
    printed: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does, who asks goes on."""
    run = subprocess.run

    def instead(command: list[str], **how: Any) -> Any:
        return run(
            [command[0], "-c", f"import os, sys, time; {printed}"], **{**how, "timeout": 1.0}
        )

    monkeypatch.setattr(subprocess, "run", instead)
    with pytest.raises(RuntimeError, match=message) as raised:
        capacity.asked("model", {"num_kv_blocks": 1})
    assert "\n" not in str(raised.value)
