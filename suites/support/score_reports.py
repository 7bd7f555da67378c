"""Reports of scores as `cachewitness score` writes them, made without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachewitness.parity.scores.document import ArmEntry, Changed, Document
from cachewitness.parity.scores.gate import Judged, Noise, Rules
from cachewitness.parity.scores.groups import GroupScore
from cachewitness.parity.scores.restored import Restored

QUESTIONS = 16


def changed(change: str = "lost", row: int = 1, **fields: Any) -> Changed:
    """Return a question that was lost or gained."""
    answers = {
        "question": "What is 3 + 4?",
        "target": "#### 7",
        "cold": "It is 7\n#### 7",
        "other": "It is 8\n#### 8",
    }
    common: dict[str, Any] = {
        "arm": "hit",
        "group": "full",
        "tenant": "",
        "prompt_hash": "0f",
        "restored": {"": 512, "full": 512},
    }
    return Changed(change=change, doc=row, row=row, **{**answers, **common, **fields})


def report(
    answers: Sequence[Changed], *, engine: str = "toy", prompt_tokens: int = 120
) -> Document:
    """Return the report of a score with the arms off and hit, where the latter changed some
    answers of 16.
    """
    lost, gained = (sum(one.change == change for one in answers) for change in ("lost", "gained"))
    counted: dict[str, Any] = {
        "n": QUESTIONS,
        "right_cold": QUESTIONS,
        "right": QUESTIONS - lost,
        "lost": lost,
        "gained": gained,
    }
    judged = Judged(
        **counted,
        arm="hit",
        verdict="fail" if lost else "pass",
        reasons=[f"{lost} of {QUESTIONS} answers differ"] if lost else [],
        alone=0,
        again=0,
        prefixes=1,
        test="sign",
        p=0.5,
        p_adjusted=0.5,
        lower=-0.1,
        mde=None,
        needed=0,
        restored=_restored(prompt_tokens * 3 // 4, prompt_tokens),
        near_ties=0,
        hard=[],
        groups=[GroupScore(**counted, group="full", p=0.5)],
        suspects=[],
    )
    return Document(
        engine=engine,
        verdict=judged.verdict,
        exit_code=1 if lost else 0,
        settings={},
        versions={},
        rules=Rules(),
        noise=Noise(),
        arms=[_arm("off", _restored(0, prompt_tokens)), _arm("hit", judged.restored)],
        judged=[judged],
        changed=list(answers),
        reused=0,
    )


def _arm(name: str, restored: Restored) -> ArmEntry:
    return ArmEntry(
        arm=name,
        questions=QUESTIONS,
        right={"strict-match": QUESTIONS},
        restored=restored,
        seconds=1.0,
    )


def _restored(tokens: int, prompt_tokens: int) -> Restored:
    counts = {"requests": QUESTIONS, "least": 4, "least_doc": 0, "from_tier": 0, "preempted": 0}
    return Restored(
        tokens=tokens, prompt_tokens=prompt_tokens, groups={}, groups_least={}, **counts
    )
