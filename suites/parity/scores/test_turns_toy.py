"""Second turns on real tensors: what an answer leaves wrong in a recurrent state is read by them
alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.score, pytest.mark.toy]
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")
torch = pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")

from cachewitness.cli import invoke
from cachewitness.core.events import Run
from cachewitness.engines.answers import Backend, Opening
from cachewitness.engines.fault_tools import wrap
from cachewitness.parity.scores import arms, offline, tasks
from cachewitness.parity.scores.arm_run import Questions
from cachewitness.parity.scores.gate import Rules
from cachewitness.parity.scores.run import Runner
from cachewitness.toy.kind import open_service
from cachewitness.toy.service import BLOCK_SIZE, ToyService
from suites.support.stub_backend import Silent

LIMIT = 16
LEFT = {"the last token is left out": BLOCK_SIZE - 1, "three tokens more stay": 3}
"""Where in its block the step of an answer begins whose state is taken for the one at the end of
the last full block.
"""


def plant(service: ToyService, moment: int) -> None:
    """Let whoever resumes at a state that an answer left go on from the one of another step."""
    tensors: Any = service.engine.tensors
    group = tensors.pools.kinds.index("linear_attention")
    begun = set[str]()
    ends: dict[str, int] = {}
    left: dict[int, list[Any]] = {}

    def chunk(original: Any, run: Run, tokens: Any) -> Any:
        table = tensors.tables(run)[group]
        views = tensors.pools.views[group]
        if run.r in begun and run.stop == run.start + 1:
            page = table[run.start // BLOCK_SIZE]
            if run.stop % BLOCK_SIZE == 0:
                ends[run.r] = page
            if run.r in ends and run.start % BLOCK_SIZE == moment:
                left[ends[run.r]] = [view[:, page].clone() for view in views]
        elif run.r not in begun and run.start:
            resumed = table[run.start // BLOCK_SIZE - 1]
            for view, state in zip(views, left.get(resumed, []), strict=False):
                view[:, resumed] = state
        begun.add(run.r)
        return original(run, tokens)

    wrap(tensors, "_chunk", chunk)


@pytest.mark.parametrize("moment", LEFT.values(), ids=LEFT.keys())
def test_a_state_that_an_answer_left_wrong_fails_turns_alone(moment: int, tmp_path: Path) -> None:
    offline.prepare()

    def opened(opening: Opening) -> Backend:
        service = open_service({}, opening)
        assert isinstance(service, ToyService)
        plant(service, moment)
        return service

    asked = Questions(task=tasks.problems(LIMIT), opener=opened, folder=tmp_path, opening=Opening())
    runner = Runner(asked, listener=Silent())
    outcome = runner.run(arms.named("off,hit,replay,turns"), Rules(tokens="declared"))
    assert {arm.arm: arm.verdict for arm in outcome.judged} == {
        "hit": "pass",
        "replay": "pass",
        "turns": "fail",
    }
    assert outcome.judged[-1].restored.reached == LIMIT


def test_turns_pass_on_every_group_with_drafts_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every hit reaches into an answer; with drafts three in four do, since vLLM gives the last
    block of such a hit back.
    """
    monkeypatch.chdir(tmp_path)
    names = "off,off-again,turns,turns-drafts"
    code = invoke(["score", "--limit", str(LIMIT), "--arms", names, "--json"])
    whole = json.loads(capsys.readouterr().out)
    plain, drafted = whole["judged"]
    assert (code, plain["verdict"], drafted["verdict"]) == (0, "pass", "pass"), whole["judged"]
    assert set(plain["restored"]["groups"]) == {"full", "sliding", "recurrent"}
    assert plain["restored"]["reached"] == LIMIT and plain["restored"]["ended"]
    assert drafted["restored"]["reached"] >= 0.75 * LIMIT == 0.75 * drafted["restored"]["drafted"]
