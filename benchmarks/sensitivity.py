"""What a damaged cache costs: answers, divergence and logits, for every damage of
`benchmarks/damages.py`.

    python -m benchmarks.sensitivity [--questions 200] [--checkpoint DIR] [--device cpu] [--write docs/results/sensitivity.md]

The questions are those of the score, through the toy engine: scheduler, cache manager, paged pools.
A cold pass is run once, and once more for the noise floor. For each damage the cache is forgotten
and warmed anew, and a request is damaged in its first step, between look-up and computation; once
with the shared prefixes cached (`hit`) and once with the very same prompts (`replay`). Each pass is
run twice: freely, for the answers, which are compared question by question, and forced along the
cold run's own answers, so that logits are compared at every position of suffix and answer, however
early the answers part.
"""  # noqa: E501

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

import torch
from torch import Tensor

from benchmarks.damages import DAMAGES, Damage
from benchmarks.needed import Row, measured, taught
from benchmarks.probe import Probe, Questions
from benchmarks.sensitivity_page import page
from benchmarks.sensitivity_result import CONDITIONS, Distance, Found, Outcome
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.parity.scores.gate import Compared, Rules, judge
from cachewitness.toy.noise import floors
from cachewitness.toy.service import ToyService

QUESTIONS = 200
PAGES_PER_QUESTION, PAGES_MIN = 16, 4096


class Bench:
    """The cold passes, run once, and an engine whose cache is damaged again and again."""

    def __init__(self, checkpoint: Path | None, count: int, device: str) -> None:
        self.questions = Questions(count)
        self.pages = max(PAGES_MIN, PAGES_PER_QUESTION * count)
        cold, probe = self._open(checkpoint, device, caching=False)
        asks = self.questions.asks()
        answers = cold.answer(asks)
        self.cold = self.questions.scores("off", answers)
        self.again = self.questions.scores("off-again", cold.answer(asks))
        self.forced = self.questions.asks(1, [answer.text for answer in answers])
        self.right = self._logits(cold, probe, None)
        cold.close()
        self.service, self.probe = self._open(checkpoint, device, caching=True)
        self.noise = floors(self.service.engine.tensors.model).logits

    def measure(self, damage: Damage | None, condition: str) -> Outcome:
        """Damage the cache and return what it did."""
        name = damage.name if damage else "none"
        self._warm(condition)
        self.probe.begin(damage, keep=False)
        answers = self.service.answer(self.questions.asks())
        scores = self.questions.scores(f"{condition}, {name}", answers)
        compared = Compared(scores, "restored", self.cold, self.again)
        self._warm(condition)
        return Outcome(
            condition=condition,
            changed=sum(
                answer.tokens != self.cold.answers[i].tokens for i, answer in enumerate(answers)
            ),
            judged=judge([compared], Rules(tokens="declared"))[0],
            blind=judge([compared], Rules())[0],
            distance=_distance(self.right, self._logits(self.service, self.probe, damage)),
        )

    def _open(
        self, checkpoint: Path | None, device: str, *, caching: bool
    ) -> tuple[ToyService, Probe]:
        service = ToyService(checkpoint, caching=caching, pages=self.pages, device=device)
        return service, Probe.of(service, self.questions)

    def _warm(self, condition: str) -> None:
        if not self.service.reset():
            raise SystemExit("sensitivity: the engine did not forget its cache")
        self.probe.begin(None, keep=False)
        self.service.answer(self.questions.warming(condition))

    def _logits(self, service: ToyService, probe: Probe, damage: Damage | None) -> list[Tensor]:
        """Return per question the logits of the positions that were computed, from the end of
        the shared prefix on.
        """
        probe.begin(damage, keep=True)
        service.answer(self.forced)
        assert len(probe.kept) == len(self.forced), (
            "requests run in the order in which they were asked"
        )
        return [torch.cat(parts) for parts in probe.kept.values()]


def run(checkpoint: Path | None, count: int, device: str, tell: Callable[[str], None]) -> Found:
    """Measure every damage under every condition."""
    bench = Bench(checkpoint, count, device)
    outcomes = {}
    for damage in (None, *DAMAGES):
        name = damage.name if damage else ""
        begun = time.process_time()
        outcomes[name] = [bench.measure(damage, condition) for condition in CONDITIONS]
        tell(
            f"{name or 'undamaged'}: {[outcome.changed for outcome in outcomes[name]]} changed, "
            f"{time.process_time() - begun:.0f} s"
        )
    differing = sum(
        a.tokens != bench.again.answers[i].tokens for i, a in bench.cold.answers.items()
    )
    versions = bench.service.versions()
    return Found(
        outcomes,
        differing,
        bench.noise.floor,
        bench.noise.tolerance,
        len(bench.forced),
        versions,
        _needs(tell),
    )


def _needs(tell: Callable[[str], None]) -> dict[tuple[str, str], list[Row]]:
    """Measure for the checkpoints of this repository which cache a question needs."""
    found = {}
    for folder in taught():
        for where, rows in measured(folder).items():
            found[folder.name, where] = rows
            tell(f"{folder.name} in {where}: {len(rows)} measured")
    return found


def _distance(right: Sequence[Tensor], logits: Sequence[Tensor]) -> Distance:
    cold = torch.cat(
        [rows[len(rows) - len(ours) :] for rows, ours in zip(right, logits, strict=True)]
    )
    ours = torch.cat([*logits])
    p = cold.log_softmax(-1)
    q = ours.log_softmax(-1)
    apart = (cold - ours).abs()
    kl = (p.exp() * (p - q)).sum(-1)
    return Distance(
        float(kl.mean().clamp(min=0)), float(apart.mean()), float(apart.max()), len(cold)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the page and, with --write, write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--questions", type=int, default=QUESTIONS, metavar="N", help=f"default {QUESTIONS}"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="default: the trained checkpoint of this repository",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page here")
    given: Any = parser.parse_args(argv)
    try:
        found = run(
            given.checkpoint,
            given.questions,
            given.device,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    except (UsageError, EngineMissing) as error:
        print(f"sensitivity: {error}", file=sys.stderr)
        return 4
    text = page(found)
    print(text)
    if given.write:
        given.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
