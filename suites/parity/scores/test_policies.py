"""Every policy answers the same questions cold and cached alike, with a trained model, by the
command itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.score, pytest.mark.toy]
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")
pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")

from cachewitness.cli import invoke
from cachewitness.engines import policy as policies
from suites.support.sampled import chosen

LIMIT = 16
OTHERS = [name for name in policies.names() if name not in ("vllm", "lmcache")]
WEAKER = {"furiosa": 0.5}
"""The model without recurrent layers does not know who has or owes how much by now, half of the
questions here."""


@pytest.mark.parametrize("policy", chosen(OTHERS, "openvino_genai"))
def test_a_cached_answer_is_the_cold_one(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every token is the same, something of every prompt was restored in each group, and the
    model answers right.
    """
    monkeypatch.chdir(tmp_path)
    warm = ["hit", "replay"]
    code = invoke(
        [
            "score",
            "--policy",
            policy,
            "--limit",
            str(LIMIT),
            "--arms",
            ",".join(["off", "off-again", *warm]),
            "--json",
        ]
    )
    whole = json.loads(capsys.readouterr().out)
    assert code == 0, whole["judged"]
    assert {arm["arm"]: arm["verdict"] for arm in whole["judged"]} == dict.fromkeys(warm, "pass")
    right = WEAKER.get(policy, 0.9) * LIMIT
    assert all(
        arm["right_cold"] >= right and arm["restored"]["least"] > 0 for arm in whole["judged"]
    )


def test_lmcache_is_asked_for_its_tier_without_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document's procedure in one command: everything in the arm tier came from there, and
    its score is the cold one.
    """
    monkeypatch.chdir(tmp_path)
    code = invoke(["score", "--policy", "lmcache", "--limit", str(LIMIT), "--json"])
    whole = json.loads(capsys.readouterr().out)
    judged = {arm["arm"]: arm for arm in whole["judged"]}
    assert (code, set(judged)) == (0, {"miss", "hit", "replay", "tier"})
    tier = judged["tier"]
    assert (
        tier["restored"]["from_tier"]
        == tier["restored"]["tokens"]
        > 0.9 * tier["restored"]["prompt_tokens"]
    )
    assert (tier["right_cold"], tier["right"], tier["hard"]) == (LIMIT, LIMIT, [])


def test_lmcache_has_checked_nothing_if_nothing_came_from_its_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every answer is right and was cached, but by vLLM: that says nothing of LMCache."""
    monkeypatch.chdir(tmp_path)
    code = invoke(
        ["score", "--policy", "lmcache", "--limit", str(LIMIT), "--arms", "off,off-again,hit"]
    )
    output = " ".join(capsys.readouterr().out.split())
    assert (
        code == 5
        and "hit: nothing came from the second tier, in which this policy keeps its prefixes; run the arm tier"  # noqa: E501
        in output
    )
