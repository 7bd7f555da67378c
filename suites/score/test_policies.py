"""Every policy answers the same questions cold and cached alike, with a trained model, by the command itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.score, pytest.mark.toy]
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")
pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")

from harness.cli import invoke
from harness.engines import policy as policies

LIMIT = 12
FURTHER = {"lmcache": ["tier"]}
"""Arms that are what a policy is for."""
WEAKER = {"furiosa": 0.6}
"""The model without recurrent layers seldom knows who owns how much by now, a third of the questions."""


@pytest.mark.parametrize("policy", [name for name in policies.names() if name != "vllm"])
def test_a_cached_answer_is_the_cold_one(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every token is the same, something of every prompt was restored in each group, and the model answers right."""
    monkeypatch.chdir(tmp_path)
    warm = ["hit", "replay", *FURTHER.get(policy, [])]
    code = invoke(
        ["score", "--policy", policy, "--limit", str(LIMIT), "--arms", ",".join(["off", "off-again", *warm]), "--json"]
    )
    whole = json.loads(capsys.readouterr().out)
    assert code == 0, whole["judged"]
    assert {arm["arm"]: arm["verdict"] for arm in whole["judged"]} == dict.fromkeys(warm, "pass")
    right = WEAKER.get(policy, 0.9) * LIMIT
    assert all(arm["right_cold"] >= right and arm["restored"]["least"] > 0 for arm in whole["judged"])
