"""What a damaged cache costs: answers, divergence and logits, for every damage of `benchmarks/damages.py`.

    python -m benchmarks.sensitivity [--questions 200] [--checkpoint DIR] [--device cpu] [--write docs/sensitivity.md]

The questions are those of the score, through the toy engine: scheduler, cache manager, paged pools. A cold pass is run once,
and once more for the noise floor. For each damage the cache is forgotten and warmed anew, and a request is damaged in its first
step, between look-up and computation; once with the shared prefixes cached (`hit`) and once with the very same prompts
(`replay`). Each pass is run twice: freely, for the answers, which are compared question by question, and forced along the cold
run's own answers, so that logits are compared at every position of suffix and answer, however early the answers part.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from benchmarks.damages import DAMAGES, Damage, Resumed, Texts
from benchmarks.sensitivity_page import page
from benchmarks.sensitivity_result import CONDITIONS, Distance, Found, Outcome
from harness._util.errors import EngineMissing, UsageError
from harness.engines.answers import Answer, Ask
from harness.engines.fault_tools import wrap
from harness.engines.toy.noise import floors
from harness.engines.toy.problems.fixture import PROMPT, STOP
from harness.engines.toy.service import ToyService
from harness.history.events import StepBegin
from harness.score.gate import PRIMARY, Rules, judge
from harness.score.pairs import Scored, Scores
from harness.score.tasks import Doc, problems

QUESTIONS = 200
PAGES_PER_QUESTION, PAGES_MIN = 16, 4096
MAX_TOKENS = 64
_RESULT = re.compile(r"#### (-?[0-9.,]+)")
"""Where an answer's result stands, as gsm8k's strict filter reads it."""


class Probe:
    """Stands in front of an engine's device: damages what requests resume from, and keeps the logits of every position."""

    def __init__(self, service: ToyService, others: Mapping[tuple[int, ...], Sequence[int]], head: int) -> None:
        self.damage: Damage | None = None
        self.keep = False
        self.kept: dict[str, list[Tensor]] = {}
        self._tensors = service.engine.tensors
        self._others, self._head = others, head
        self._least = head - head % self._tensors.pools.groups[0].block_size
        self._texts = Texts(self._tensors.model)
        self._seen: set[str] = set()
        self._exchanged: set[tuple[int, ...]] = set()
        wrap(self._tensors, "execute", self._execute)

    def begin(self, damage: Damage | None, *, keep: bool) -> None:
        """Begin a pass over the questions."""
        self.damage, self.keep, self.kept = damage, keep, {}
        self._exchanged = set()

    def _execute(
        self,
        original: Callable[..., dict[str, Tensor]],
        begin: StepBegin,
        withdrawn: Collection[str],
        tokens: Mapping[str, list[int]],
    ) -> dict[str, Tensor]:
        for run in begin.runs:
            if run.r not in self._seen and self.damage is not None:
                text = tokens[run.r]
                assert run.start, "every request resumes from the cache"
                other = self._others[tuple(text[: self._head])]
                self.damage.do(Resumed(self._tensors.pools, run.tables, text, run.start, other, self._texts, self._exchanged))
            self._seen.add(run.r)
        self._tensors.every_position = self.keep
        logits = original(begin, withdrawn, tokens)
        if not self.keep:
            return logits
        for run in begin.runs:
            first = max(self._least - run.start, 0)
            self.kept.setdefault(run.r, []).append(logits[run.r][first:].clone())
        return {run.r: logits[run.r][-1:] for run in begin.runs}


class Questions:
    """What is asked: prompts, right answers, and whose context is whose."""

    def __init__(self, count: int) -> None:
        self.docs = problems(count).asked
        self.prompts = [PROMPT.format(context=doc.context, question=doc.question) for doc in self.docs]
        self.contexts = list(dict.fromkeys(doc.context for doc in self.docs))
        if len(self.contexts) < 2:
            raise UsageError("--questions: too few; another tenant's cache needs questions of two tenants")

    def asks(self, max_tokens: int = MAX_TOKENS, behind: Sequence[str] | None = None) -> list[Ask]:
        """Return the questions as they are asked, `behind` being what follows each prompt."""
        texts = self.prompts if behind is None else [p + text for p, text in zip(self.prompts, behind, strict=True)]
        return [Ask(str(i), text, stop=(STOP,), max_tokens=max_tokens) for i, text in enumerate(texts)]

    def warming(self, condition: str) -> list[Ask]:
        """Return what is asked beforehand."""
        texts = self.contexts if condition == "hit" else self.prompts
        return [Ask(f"warm-{i}", text, max_tokens=1) for i, text in enumerate(texts)]

    def others(self, encode: Callable[[str], list[int]], head: int) -> dict[tuple[int, ...], list[int]]:
        """Return for the first `head` tokens of each context a text of the next tenant, longer than any prompt, as tokens."""
        contexts = [encode(context) for context in self.contexts]
        texts = [encode("".join(p for p in self.prompts if p.startswith(context))) for context in self.contexts]
        return {tuple(own[:head]): texts[(i + 1) % len(texts)] for i, own in enumerate(contexts)}

    def scores(self, arm: str, answers: Sequence[Answer]) -> Scores:
        """Return answers as the gate reads them."""
        rows = [self._scored(i, doc, answer) for i, (doc, answer) in enumerate(zip(self.docs, answers, strict=True))]
        return Scores(arm=arm, rows=tuple(rows), answers=dict(enumerate(answers)))

    def _scored(self, index: int, doc: Doc, answer: Answer) -> Scored:
        extracted, target = _result(answer.text), _result(doc.answer)
        return Scored(
            doc=index,
            filter=PRIMARY,
            prompt_hash=hashlib.sha256(self.prompts[index].encode()).hexdigest(),
            correct=extracted == target,
            extracted=extracted,
            target=target,
            question=doc.question,
            group=doc.group,
            family=doc.family,
            tenant=doc.tenant,
            row=doc.row,
        )


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
        self._warm(condition)
        return Outcome(
            condition=condition,
            changed=sum(answer.tokens != self.cold.answers[i].tokens for i, answer in enumerate(answers)),
            judged=judge(self.cold, [(scores, "restored")], self.again, Rules(tokens="declared"))[1][0],
            blind=judge(self.cold, [(scores, "restored")], self.again, Rules())[1][0],
            distance=_distance(self.right, self._logits(self.service, self.probe, damage)),
        )

    def _open(self, checkpoint: Path | None, device: str, *, caching: bool) -> tuple[ToyService, Probe]:
        service = ToyService(checkpoint, caching=caching, pages=self.pages, device=device)
        return service, self._probe(service)

    def _probe(self, service: ToyService) -> Probe:
        encode = service.tokenizer.encode
        contexts = [encode(context) for context in self.questions.contexts]
        least = min(map(len, contexts))
        return Probe(service, self.questions.others(encode, least), least)

    def _warm(self, condition: str) -> None:
        if not self.service.reset():
            raise SystemExit("sensitivity: the engine did not forget its cache")
        self.probe.begin(None, keep=False)
        self.service.answer(self.questions.warming(condition))

    def _logits(self, service: ToyService, probe: Probe, damage: Damage | None) -> list[Tensor]:
        """Return per question the logits of the positions that were computed, from the end of the shared prefix on."""
        probe.begin(damage, keep=True)
        service.answer(self.forced)
        assert len(probe.kept) == len(self.forced), "requests run in the order in which they were asked"
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
    differing = sum(a.tokens != bench.again.answers[i].tokens for i, a in bench.cold.answers.items())
    versions = bench.service.versions()
    return Found(outcomes, differing, bench.noise.floor, bench.noise.tolerance, len(bench.forced), versions)


def _result(text: str) -> str:
    found = _RESULT.search(text)
    return found[1] if found else ""


def _distance(right: Sequence[Tensor], logits: Sequence[Tensor]) -> Distance:
    cold = torch.cat([rows[len(rows) - len(ours) :] for rows, ours in zip(right, logits, strict=True)])
    ours = torch.cat([*logits])
    p, q = cold.log_softmax(-1), ours.log_softmax(-1)
    apart = (cold - ours).abs()
    kl = (p.exp() * (p - q)).sum(-1)
    return Distance(float(kl.mean().clamp(min=0)), float(apart.mean()), float(apart.max()), len(cold))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the page and, with --write, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=QUESTIONS, metavar="N", help=f"default {QUESTIONS}")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="default: the trained checkpoint of this repository")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page here")
    given: Any = parser.parse_args(argv)
    try:
        found = run(given.checkpoint, given.questions, given.device, lambda line: print(line, file=sys.stderr, flush=True))
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
