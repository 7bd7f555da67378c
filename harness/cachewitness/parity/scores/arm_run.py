"""Runs one arm through lm-eval, which builds the prompts, asks, filters and scores.

What is scored comes back as its samples: one row for each question and filter, with the hash of the
prompt, by which rows of two arms are paired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cachewitness.engines.answers import Backend, Opening
from cachewitness.parity.scores.answer_store import AnswerStore, prompt_hash
from cachewitness.parity.scores.arms import Arm
from cachewitness.parity.scores.asking import Asking
from cachewitness.parity.scores.named_task import AnyTask
from cachewitness.parity.scores.pairs import Scored, Scores

Open = Callable[[Opening], Backend]
OPENED = ("caching", "tier", "preempt", "drafts", "scarce")
"""What an arm says of how the engine is opened."""


class Questions(msgspec.Struct, frozen=True, kw_only=True):
    """What every arm of a run has in common. `nonce` tells its salts from those of any other
    run.
    """

    task: AnyTask
    opener: Open
    folder: Path
    opening: Opening
    nonce: str = ""


class ArmRun(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm answered, in how many seconds, and with which salts by question; `reused`
    answers are an earlier run's.
    """

    scores: Scores
    seconds: float
    versions: Mapping[str, str]
    salts: Mapping[int, str]
    reused: int


def run_arm(
    arm: Arm,
    asked: Questions,
    model: Callable[[Asking], Any] | None = None,
    begins: Callable[[int], None] = lambda reused: None,
    tell: Callable[[int], None] = lambda count: None,
) -> ArmRun:
    """Ask the questions of an arm and have them scored. `model` makes lm-eval's model; None: the
    one that asks in this process.

    `begins(reused)` is called before the first question, `tell(n)` for n new answers. Raises
    BackendError if the engine does not answer; what was answered is kept.
    """
    kept = AnswerStore(asked.folder, arm.name)
    first = AnswerStore(asked.folder, f"{arm.turns_of}-first") if arm.turns_of else None
    opening = msgspec.structs.replace(asked.opening, **{key: getattr(arm, key) for key in OPENED})
    asking = Asking(
        arm, kept, lambda: asked.opener(opening), first=first, nonce=asked.nonce, tell=tell
    )
    begins(kept.reused)
    started = time.monotonic()
    try:
        samples = asked.task.evaluate((model or _in_process)(asking), asked.opening.seed)
    finally:
        asking.close()
    return ArmRun(
        scores=_scores(samples, asking),
        seconds=time.monotonic() - started,
        versions=kept.versions,
        salts={int(line.answer.id): line.salt for line in kept.lines.values() if line.answer},
        reused=kept.reused,
    )


def _scores(samples: Sequence[Mapping[str, Any]], asking: Asking) -> Scores:
    """Return lm-eval's samples of an arm as scores."""
    asks = {doc: asking.ask(doc, *arguments) for doc, arguments in _arguments(samples)}
    sent = {doc: asking.sent(ask) or ask for doc, ask in asks.items()}
    first = {doc: asking.first_turn(ask) for doc, ask in asks.items()}
    rows = tuple(
        Scored(
            doc=int(sample["doc_id"]),
            filter=str(sample["filter"]),
            prompt_hash=prompt_hash(sent[int(sample["doc_id"])].prompt),
            correct=bool(sample["exact_match"]),
            extracted=str(sample["filtered_resps"][0]),
            target=str(sample["target"]),
            **{key: sample["doc"][key] for key in ("question", "group", "family", "tenant", "row")},
        )
        for sample in samples
    )
    return Scores(
        arm=asking.arm.name,
        rows=rows,
        answers={doc: asking.answer(ask) for doc, ask in asks.items()},
        first={doc: turn for doc, turn in first.items() if turn},
    )


def _in_process(asking: Asking) -> Any:
    from cachewitness.parity.scores.lm import BackendLM

    return BackendLM(asking)


def _arguments(
    samples: Sequence[Mapping[str, Any]],
) -> list[tuple[int, tuple[str, Mapping[str, Any]]]]:
    """Return each question's arguments once, although its sample comes once for each filter."""
    return list({int(sample["doc_id"]): sample["arguments"][0] for sample in samples}.items())
