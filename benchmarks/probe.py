"""What stands between questions and an engine when its cache is damaged, and the questions
themselves.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from torch import Tensor

from benchmarks.damages import Damage, Resumed, Texts
from cachewitness._util.errors import UsageError
from cachewitness.core.events import StepBegin
from cachewitness.engines.answers import Answer, Ask
from cachewitness.engines.fault_tools import wrap
from cachewitness.parity.scores.gate import PRIMARY
from cachewitness.parity.scores.pairs import Scored, Scores
from cachewitness.parity.scores.tasks import Doc, problems
from cachewitness.toy.problems.fixture import PROMPT, STOP
from cachewitness.toy.service import ToyService

MAX_TOKENS = 64
_RESULT = re.compile(r"#### (-?[0-9.,]+)")
"""Where an answer's result stands, as gsm8k's strict filter reads it."""


class Probe:
    """Stands in front of an engine's device: damages what requests resume from, and keeps the
    logits of every position.
    """

    def __init__(
        self, service: ToyService, others: Mapping[tuple[int, ...], Sequence[int]], head: int
    ) -> None:
        self.damage: Damage | None = None
        self.keep = False
        self.kept: dict[str, list[Tensor]] = {}
        self._tensors = service.engine.tensors
        self._others = others
        self._head = head
        self._least = head - head % self._tensors.pools.groups[0].block_size
        self._texts = Texts(self._tensors.model)
        self._seen: set[str] = set()
        self._exchanged: set[tuple[int, ...]] = set()
        wrap(self._tensors, "execute", self._execute)

    @classmethod
    def of(cls, service: ToyService, questions: Questions) -> Probe:
        """Return a probe in front of a service that is going to be asked these questions."""
        encode = service.tokenizer.encode
        least = min(len(encode(context)) for context in questions.contexts)
        return cls(service, questions.others(encode, least), least)

    def begin(self, damage: Damage | None, *, keep: bool) -> None:
        """Begin a pass over the questions."""
        self.damage = damage
        self.keep = keep
        self.kept = {}
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
                self.damage.do(
                    Resumed(
                        self._tensors.pools,
                        run.tables,
                        text,
                        run.start,
                        other,
                        self._texts,
                        self._exchanged,
                    )
                )
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
        self.prompts = [
            PROMPT.format(context=doc.context, question=doc.question) for doc in self.docs
        ]
        self.contexts = list(dict.fromkeys(doc.context for doc in self.docs))
        if len(self.contexts) < 2:
            raise UsageError(
                "--questions: too few; another tenant's cache needs questions of two tenants"
            )

    def asks(self, max_tokens: int = MAX_TOKENS, behind: Sequence[str] | None = None) -> list[Ask]:
        """Return the questions as they are asked, `behind` being what follows each prompt."""
        texts = (
            self.prompts
            if behind is None
            else [p + text for p, text in zip(self.prompts, behind, strict=True)]
        )
        return [
            Ask(str(i), text, stop=(STOP,), max_tokens=max_tokens) for i, text in enumerate(texts)
        ]

    def warming(self, condition: str) -> list[Ask]:
        """Return what is asked beforehand."""
        texts = self.contexts if condition == "hit" else self.prompts
        return [Ask(f"warm-{i}", text, max_tokens=1) for i, text in enumerate(texts)]

    def others(
        self, encode: Callable[[str], list[int]], head: int
    ) -> dict[tuple[int, ...], list[int]]:
        """Return for the first `head` tokens of each context a text of the next tenant, longer
        than any prompt, as tokens.
        """
        contexts = [encode(context) for context in self.contexts]
        texts = [
            encode("".join(p for p in self.prompts if p.startswith(context)))
            for context in self.contexts
        ]
        return {tuple(own[:head]): texts[(i + 1) % len(texts)] for i, own in enumerate(contexts)}

    def scores(self, arm: str, answers: Sequence[Answer]) -> Scores:
        """Return answers as the gate reads them."""
        rows = [
            self._scored(i, doc, answer)
            for i, (doc, answer) in enumerate(zip(self.docs, answers, strict=True))
        ]
        return Scores(arm=arm, rows=tuple(rows), answers=dict(enumerate(answers)))

    def _scored(self, index: int, doc: Doc, answer: Answer) -> Scored:
        extracted = _result(answer.text)
        target = _result(doc.answer)
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


def _result(text: str) -> str:
    found = _RESULT.search(text)
    return found[1] if found else ""
