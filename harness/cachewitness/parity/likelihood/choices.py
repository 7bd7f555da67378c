"""Tasks of lm-eval as questions: what it asks for is asked for in a way that reads the cache, and
what comes is handed back to lm-eval, which scores it.

By itself lm-eval sends the whole text, continuation included, and has it echoed with logarithms.
vLLM computes such a prompt anew, and llama.cpp's server knows no echo. That request is sent as
well, twice, so that a report says of this very server what it restored.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence

import msgspec

from cachewitness.engines.answers import BackendError
from cachewitness.parity.likelihood.asking import Served
from cachewitness.parity.likelihood.document import LmEval, Metric, OwnWay
from cachewitness.parity.likelihood.measuring import COLD, OFF, Measured
from cachewitness.parity.likelihood.questions import Question, sharing
from cachewitness.parity.likelihood.steps import Step, restored_in
from cachewitness.parity.scores.named_task import GENERATED, NamedTask
from cachewitness.parity.scores.noting import NotingLM, Wanted, body_of, read
from cachewitness.parity.scores.traps import traps_of


class Choices:
    """A task of lm-eval's on a server."""

    def __init__(self, task: NamedTask, server: Served) -> None:
        self._task = task
        self._server = server
        self._tokens_of = functools.cache(server.tokens)

    def questions(self) -> list[Question]:
        """Return what lm-eval asks, by prefix. Raises UsageError for a prefix that is none."""
        task = self._task
        model = NotingLM(self._tokens_of)
        task.samples(model)
        found: dict[tuple[int, tuple[int, ...]], Question] = {}
        for one in model.wanted:
            bare = Question(
                row=task.asked[one.doc] + 1,
                text=one.text.rsplit("\n\n", 1)[-1],
                prefix=f"p{one.doc % task.prefixes}",
                shared=0,
                prompt=one.text,
                tokens=one.tokens,
                common=0,
            )
            question = found.setdefault((one.doc, tuple(one.tokens)), bare)
            question.given.extend([one.given] if one.given else [])
        by_prefix: dict[str, list[Question]] = {}
        for question in found.values():
            by_prefix.setdefault(question.prefix, []).append(question)
        return [one for group in by_prefix.values() for one in sharing(group, group[0].tokens)]

    def by_itself(self, question: Question, others: Sequence[str]) -> LmEval:
        """Return what lm-eval's own run would be: asked for a question's continuation, and the
        traps on this server and others.
        """
        own = own_way(self._server, question) if question.given else None
        urls = [self._server.url, *others]
        lines = [own.line] if own and not own.hits else []
        found = traps_of(self._task, self._tokens_of, urls, self._server.key)
        return LmEval(own_way=own, traps=[*lines, *found])

    def scored(self, by_itself: LmEval, found: Measured) -> LmEval:
        """Add what lm-eval makes of the likelihoods that the arms measured, beside the cold ones,
        by each metric of right and wrong.

        A token that is not among an arm's best counts as the last of them.
        """
        cold = self._by_document(found, OFF)
        rows = []
        for arm in [name for name in found.arms if name not in COLD]:
            there = self._by_document(found, arm)
            docs = sorted(cold.keys() & there.keys())
            for name in dict.fromkeys(name for doc in docs for name in cold[doc]):
                pairs = [(cold[doc][name], there[doc][name]) for doc in docs]
                if {value for pair in pairs for value in pair} <= {0.0, 1.0}:
                    rows.append(_metric(arm, name, pairs))
        places = {index: len(one.nodes(sys.maxsize)) for index, one in enumerate(found.questions)}
        asked = {index: len({*map(tuple, paths)}) for index, paths in found.paths.items()}
        return msgspec.structs.replace(
            by_itself,
            metrics=rows,
            partial=sum(count < places[index] for index, count in asked.items()),
            places=max(places.values()),
        )

    def _by_document(self, found: Measured, arm: str) -> dict[int, dict[str, float]]:
        """Return lm-eval's metrics of an arm by document, of those that it measured whole."""
        if self._task.kind == GENERATED:
            return {}
        best = _best(found, arm)
        short: set[int] = set()

        def likelihood(wanted: Wanted) -> tuple[float, bool]:
            total = 0.0
            greedy = True
            for depth, token in enumerate(wanted.given):
                there = best.get((*wanted.tokens, *wanted.given[:depth]))
                if there is None:
                    short.add(wanted.doc)
                    return 0.0, False
                total += there.get(token, min(there.values()))
                greedy = greedy and max(there, key=there.__getitem__) == token
            return total, greedy

        samples = self._task.samples(NotingLM(self._tokens_of, likelihood))
        return {
            sample["doc_id"]: {
                name: float(sample[name])
                for name in sample["metrics"]
                if isinstance(sample[name], int | float)
            }
            for sample in samples
            if sample["doc_id"] not in short
        }


def own_way(server: Served, question: Question) -> OwnWay:
    """Ask for a question's first continuation as lm-eval does, twice."""
    tokens = question.tokens + question.given[0]
    body = body_of(server.model, tokens)
    restored = -1
    unread = ""
    try:
        for _ in range(2):
            content = server.send(body, "lm-eval's own request")
        restored = restored_in(content, zero_left_out=server.zero_left_out)
        read(content, len(question.tokens))
    except BackendError as error:
        unread = " ".join(str(error).split())
    except Exception as error:
        unread = f"lm-eval ends with {type(error).__name__}: {error}"
    return OwnWay(tokens=len(tokens), restored=restored, unread=unread)


def _metric(arm: str, name: str, pairs: Sequence[tuple[float, float]]) -> Metric:
    return Metric(
        arm=arm,
        name=name,
        docs=len(pairs),
        cold=math.fsum(one for one, _ in pairs) / len(pairs),
        there=math.fsum(other for _, other in pairs) / len(pairs),
        changed=sum(one != other for one, other in pairs),
    )


def _best(found: Measured, arm: str) -> dict[tuple[int, ...], dict[int, float]]:
    """Return the best tokens behind each prompt that an arm was asked for and counts."""
    best: dict[tuple[int, ...], dict[int, float]] = {}
    for index, steps in found.cold.items():
        for position, cold in enumerate(steps):
            step: Step | None = cold
            if arm != OFF:
                kept = found.arms[arm].get((index, position))
                step = kept if kept is not None and not kept.why else None
            if step is not None:
                prompt = (*found.questions[index].tokens, *found.paths[index][position])
                best.setdefault(prompt, {}).update(step.best)
    return best
