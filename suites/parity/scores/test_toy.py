"""The toy engine behind the score: with parameters drawn at random it knows nothing, and every arm
still does what it is for.

That a trained model passes and a damaged cache fails is the business of the checkpoints' own tests;
what is shown here needs no training: salts, warming, the second tier, preemption and the server all
reach the real engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.score
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")
pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")

from cachewitness.cli import invoke
from cachewitness.parity.scores.server import LocalServer
from cachewitness.toy.problems.words import VOCABULARY
from cachewitness.toy.service import ToyService
from cachewitness_reference.toy_model import checkpoint, weights
from cachewitness_reference.toy_model.tokenizer import as_hugging_face
from cachewitness_training.recipes import RECIPES
from suites.support.gsm8k_rows import documented, rows_like_gsm8k
from suites.support.sampled import fewer

SMALL = {"hidden_size": 32, "intermediate_size": 32}
ONE_HEAD = (
    "num_attention_heads",
    "num_key_value_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of the toy's shape of layers, as small as can be."""
    folder = tmp_path_factory.mktemp("checkpoint")
    config = replace(RECIPES["toy"].config, **SMALL, **dict.fromkeys(ONE_HEAD, 1))
    checkpoint.save(
        folder, config, weights.random_weights(config, 0), as_hugging_face(VOCABULARY), {}
    )
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield


def reasons(whole: dict[str, Any]) -> list[str]:
    return [reason for arm in whole["judged"] for reason in arm["reasons"]]


def test_every_arm_reaches_the_engine_and_does_what_it_is_for(
    untrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is checked for one reason alone: the model. So every arm before that had restored
    what it must.
    """
    asked = fewer(16, 8)
    argv = [
        "--engine",
        "toy",
        "--checkpoint",
        str(untrained),
        "--limit",
        str(asked),
        "--max-tokens",
        "8",
    ]
    code = invoke(
        ["score", *argv, "--arms", "off,off-again,miss,hit,replay,tier,preempted", "--json"]
    )
    whole = json.loads(capsys.readouterr().out)
    assert code == 5 and len(whole["judged"]) == 5
    assert all(reason.startswith("the model is too weak") for reason in reasons(whole)), reasons(
        whole
    )
    restored = {entry["arm"]: entry["restored"] for entry in whole["arms"]}
    assert set(restored["hit"]["groups"]) == {"full", "sliding", "recurrent"}
    assert (
        restored["tier"]["from_tier"] > 0.9 * restored["tier"]["tokens"]
        and restored["preempted"]["preempted"]
    )
    assert (whole["noise"]["n"], whole["noise"]["tokens"], whole["noise"]["scores"]) == (
        asked,
        0,
        0,
    ) and not any(arm["hard"] for arm in whole["judged"])
    assert whole["versions"]["checkpoint"]


def test_gsm8k_through_the_toys_server_is_nothing_checked_because_the_model_is_too_weak(
    untrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every question, cold and cached, through `local-completions`, by the command that the
    documentation gives.
    """
    asked = fewer(200, 24)
    Path("test.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows_like_gsm8k(asked + 5))
    )
    with LocalServer(ToyService(untrained, block_size=64, budget=4096)) as local:
        code = invoke([*documented(local.url), "--max-tokens", "4", "--json"])
    whole = json.loads(capsys.readouterr().out)
    restored = {entry["arm"]: entry["restored"] for entry in whole["arms"]}
    assert code == 5 and restored["off"]["requests"] == restored["hit"]["requests"] == asked
    assert restored["off"]["tokens"] == restored["off-again"]["tokens"] == 0
    assert (
        restored["hit"]["least"] >= 8 * 64
        and restored["hit"]["tokens"] > 0.8 * restored["hit"]["prompt_tokens"]
    )
    assert reasons(whole) == [
        f"the model is too weak to judge by: at most 0 of {asked} answers right in either arm"
    ]
