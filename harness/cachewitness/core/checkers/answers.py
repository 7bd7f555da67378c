"""Compares what an engine answers with what it answers to the same tokens without its cache.

This is all that can be judged of an engine that tells no pages. Logprobs are compared first and
tokens second, because most wrong states move a logprob by 0.001 to 0.1 and leave the likeliest
token alone. Where tokens differ and their logprobs do not, two tokens are nearly as likely: the
answers part there lawfully, and what follows is compared with what the baseline says after the
engine's own token (the next `cold` of the request).

How many tokens an engine restores is judged too: no more than the prompt shares with a request of
the same identity; and of an equal prompt that is asked again at once some, if the engine declares
it, or it says why not. What it says that it kept, would have fitted, and was not used is no such
reason, of whatever prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log
from typing import Literal, NamedTuple, TypeGuard

from cachewitness._util.lines import one_line
from cachewitness.core.checkers.divergence import WIDE, Blind
from cachewitness.core.checkers.finding import Finding, Measured, merge_measured
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.resumes import shared_tokens
from cachewitness.core.checkers.wording import count, named
from cachewitness.core.events import Aborted, Answer, Cold, Finished, Header, Submitted
from cachewitness.core.ledger.ledger import Ledger

DIFFERS, MISSING, FOREIGN = "answer-differs", "answer-missing", "foreign-restore"
UNLIKE = "baseline-differs"
BATCH, AGAIN = "batch", "again"
"""The causes of a baseline that is not like itself: beside others, and when it is asked again."""
LOST = "lost-repeat"
TOO_LONG = "max_prompt, which a prompt exceeds that is answered alone"
"""Why a request is refused lawfully that a fresh engine takes."""

BY_CHANCE = 4
"""So many tokens a prompt may share by chance with what other traces left, where they are kept
apart by their texts alone."""

EVEN = log(0.5)
EVEN_MOST = 0.5
"""The logprob of one half, which is the most that two equally likely tokens can have, and how far
rounding may lift it."""

BEYOND = 1e9
"""The floor where right answers are not the same tokens: further than logprobs can be apart, and
still a number in a file."""

Kind = Literal["", "logprob", "number", "token", "length", "near-tie"]


class Comparison(NamedTuple):
    """Where an answer first differs from the cold one, and how; `at` counts in the whole answer.

    `kind` is empty if it does not differ, `near-tie` if it may. `largest` is the largest difference
    of two logprobs up to there, and `rows` how many tokens were compared.
    """

    kind: Kind
    at: int
    largest: float
    rows: int


def compare(answer: Answer, cold: Cold) -> Comparison:
    """Compare an answer, from the cold one's `start` on, with the cold one."""
    actual = answer.tokens[cold.start :]
    right = cold.tokens
    probable = bool(answer.logprobs and cold.logprobs)
    largest = 0.0
    if actual and right and bool(answer.logprobs) != bool(cold.logprobs):
        return Comparison("number", cold.start, largest, 0)
    for index in range(max(len(actual), len(right))):
        at = cold.start + index
        if index >= min(len(actual), len(right)):
            return Comparison("length", at, largest, index)
        off = _difference(answer.logprobs[at], cold.logprobs[index]) if probable else 0.0
        if not isfinite(off):
            return Comparison("number", at, largest, index + 1)
        largest = max(largest, off)
        if actual[index] != right[index]:
            tie = probable and off <= cold.tolerance and _even(answer.logprobs[at], cold.tolerance)
            return Comparison("near-tie" if tie else "token", at, largest, index + 1)
        if off > cold.tolerance:
            return Comparison("logprob", at, largest, index + 1)
    return Comparison("", cold.start + len(actual), largest, len(actual))


def _even(logprob: float | None, tolerance: float) -> bool:
    """Whether another token can be as likely as one of this logprob: the two together have no
    more than all.
    """
    return is_number(logprob) and logprob <= EVEN + min(tolerance, EVEN_MOST)


def is_number(logprob: float | None) -> TypeGuard[float]:
    """Whether a logprob is there, and finite."""
    return logprob is not None and isfinite(logprob)


def _difference(actual: float | None, right: float | None) -> float:
    """Return by how much two logprobs differ: infinity if only one of them is a number."""
    numbers = [*filter(is_number, (actual, right))]
    if len(numbers) < 2:
        return float("inf") if numbers else 0.0
    return abs(numbers[0] - numbers[1])


class AnswersAgree(Checker):
    """An answer is the one that the engine gives without its cache, within rounding."""

    name = "answers"
    summary = (
        "answers are those of the engine without its cache; nothing is restored that nobody"
        " computed, and of a prompt asked again at once something"
    )
    anomalies = (DIFFERS, MISSING, FOREIGN, UNLIKE, LOST)
    lacks = "an answer with restored tokens, beside one of a baseline that restores none"

    def __init__(self) -> None:
        super().__init__()
        self._requests: dict[str, Submitted] = {}
        self._answers: dict[str, Answer] = {}
        self._reported: set[str] = set()
        self._excused: set[str] = set()
        """Requests that are given up alone as well: the pool has no room for them."""
        self._unlike = False
        """Whether the baseline is not like itself, so that nothing is compared with it."""
        self._engine_aborts = False
        self._most = 0
        """The longest prompt that the engine says that it takes; 0: it does not say."""
        self._under_way: set[str] = set()
        self._crowded: set[str] = set()
        """Requests beside which another one was under way."""
        self._by_chance = 0
        self._repeats = 0
        """From so many tokens on an equal prompt restores something; 0: the engine does not say."""
        self._last: Submitted | None = None
        """Who was answered last, whole, and nobody asked since."""
        self._again: dict[str, str] = {}
        """Requests whose prompt is that of the last answer, and whose that was."""
        self._repeated: list[bool] = []
        """For each of them whether something was restored."""
        self._prompts = self._restored = 0
        """Tokens of prompts that were answered, and those of them that were restored."""

    def not_applicable(self, header: Header) -> str:
        self._engine_aborts = header.rules.engine_aborts
        self._most = header.rules.max_prompt
        self._by_chance = (
            BY_CHANCE if header.rules.answering and header.rules.answering.texts else 0
        )
        self._repeats = header.rules.answering.repeats if header.rules.answering else 0
        own = header.not_applicable.get(self.name, "")
        return (
            own
            if header.level == "answers"
            else "the engine tells its pages, by which it is judged"
        )

    def handlers(self) -> dict[type, Handler]:
        return {
            Submitted: self.on_submit,
            Answer: self.on_answer,
            Aborted: self.on_abort,
            Cold: self.on_cold,
            Finished: self.on_finish,
        }

    def on_submit(self, ledger: Ledger, event: Submitted) -> Found:
        """Remember who asked what, and beside whom."""
        self._requests[event.r] = event
        last = self._last
        self._last = None
        if last and (last.tokens, _identity(last)) == (event.tokens, _identity(event)):
            self._again[event.r] = last.r
        if self._under_way:
            self._crowded |= {event.r, *self._under_way}
        self._under_way.add(event.r)
        return None

    def on_abort(self, ledger: Ledger, event: Aborted) -> Found:
        """Remember who is not under way any more."""
        self._under_way.discard(event.r)
        return None

    def on_answer(self, ledger: Ledger, event: Answer) -> Found:
        """Judge how much was restored."""
        self._answers[event.r] = event
        self._under_way.discard(event.r)
        self._prompts += len(self._requests[event.r].tokens)
        self._restored += max(event.restored, 0)
        if event.why and event.restored == 0:
            self.excused[f"nothing restored: {one_line(event.why).partition(' (')[0]}"] += 1
        if event.ended in ("length", "stop") and not self._under_way:
            self._last = self._requests[event.r]
        if event.r in self._again and event.r not in self._crowded and event.restored >= 0:
            self._repeated.append(event.restored > 0)
            if self._is_lost(event):
                return [self._lost(event)]
        if event.unused and event.restored >= 0 and self._alone_to_its_end(event):
            return [self._left(event)]
        reach, whose = self._reach(event.r)
        if event.restored > max(reach, self._by_chance):
            return [self._foreign(event, reach, whose)]
        return None

    def on_cold(self, ledger: Ledger, event: Cold) -> Found:
        """Compare the answer with the cold one. Raises Blind if rounding alone could hide what
        is looked for.
        """
        if self._unlike:
            return None
        if not event.tolerance <= event.ceiling:
            if event.floor >= BEYOND or event.dtype in WIDE:
                self._unlike = True
                return [_unlike_itself(event)]
            raise Blind(
                f"right {event.dtype} logprobs of this model differ by {event.floor:.1e}"
                f"{_pair(event)}; the tolerance {event.tolerance:.1e} would exceed its ceiling"
                f" {event.ceiling:.1e}, so nothing is judged; use a wider dtype"
            )
        answer = self._answers[event.r]
        if event.refused:
            self._excused.add(event.r)
            return None
        compared = compare(answer, event)
        restored = answer.restored > 0 and event.restored == 0
        self.opportunities += restored and event.start == 0 and compared.rows > 0
        self.acceptable += compared.kind == "near-tie"
        wrong = compared.kind not in ("", "near-tie")
        self.measured = merge_measured(
            [*self.measured, _measured(event, compared, restored, wrong)]
        )
        if not wrong or event.r in self._reported:
            return None
        self._reported.add(event.r)
        return [self._differs(answer, event, compared)]

    def on_finish(self, ledger: Ledger, event: Finished) -> Found:
        """Judge whether whoever waits for an answer has one."""
        answer = self._answers.get(event.r)
        if answer is None:
            return [self._missing(event.r, "none comes", "finished without an answer")]
        if answer.ended == "refused":
            return self._given_up(event.r)
        if answer.ended == "cancelled":
            return [
                self._missing(
                    event.r,
                    f"the engine cancels it after {count(len(answer.tokens), 'token')}",
                    f"was cancelled by the engine after {count(len(answer.tokens), 'token')}",
                )
            ]
        return None

    def close(self, ledger: Ledger) -> Found:
        """Complete what was measured by what was restored."""
        for measured in self.measured[:1]:
            measured.repeats = len(self._repeated)
            measured.repeats_restored = sum(self._repeated)
            measured.asked = self._prompts
            measured.restored = self._restored
        return None

    def _reach(self, r: str) -> tuple[int, str]:
        """Return how many tokens of a prompt others of its identity begin with as well, and who
        does so with the most.
        """
        asked = self._requests[r]
        best = (0, "")
        for other in self._requests.values():
            if other.r != r and _identity(other) == _identity(asked):
                best = max(
                    best, (min(self._shared(asked.tokens, other), len(asked.tokens)), other.r)
                )
        return best

    def _shared(self, prompt: Sequence[int], other: Submitted) -> int:
        answer = self._answers.get(other.r)
        text = other.tokens + (answer.tokens if answer is not None else [])
        same = shared_tokens(prompt, text)
        complete = answer is not None and answer.ended in ("length", "stop")
        return (
            same if complete or same < len(other.tokens) else same + other.generate
        )  # what it has generated is not known

    def _is_lost(self, answer: Answer) -> bool:
        """Whether nothing of an equal prompt was restored that the engine owes, and it does not
        say why.
        """
        length = len(self._requests[answer.r].tokens)
        owed = 0 < self._repeats <= length and self._alone_to_its_end(answer)
        return owed and answer.restored == 0 and not answer.why and not answer.unused

    def _given_up(self, r: str) -> Found:
        """Judge a request that the engine refused, or ended for want of room, by how long it says
        that a prompt may be; where it does not say, by what a fresh engine does.
        """
        request = self._requests[r]
        prompt = len(request.tokens)
        alone = r not in self._excused
        if 0 < self._most < prompt:
            # A token more is what suites try on purpose, so that it says nothing of the limit.
            if alone and prompt > self._most + 1:
                self.excused[TOO_LONG] += 1
            return None
        if self._engine_aborts and r in self._crowded:
            return None
        # The last token that is generated need not be kept.
        if prompt + request.generate <= self._most + 1:
            most = count(self._most, "token")
            return [
                self._missing(
                    r,
                    f"the engine, which says that it takes prompts of up to {most}, gives it up",
                    f"was aborted by the engine; its prompt of {count(prompt, 'token')} is no"
                    f" longer than the {most} that it says that it takes",
                )
            ]
        if not alone:
            return None
        return [
            self._missing(
                r,
                "the engine gives it up, which it answers alone in a pool of that size",
                "was aborted by the engine, which answers it alone",
            )
        ]

    def _alone_to_its_end(self, answer: Answer) -> bool:
        """Whether nobody else was under way, for whom the engine may have needed its room."""
        return answer.r not in self._crowded and answer.ended in ("length", "stop")

    def _lost(self, answer: Answer) -> Finding:
        length = count(len(self._requests[answer.r].tokens), "token")
        before = self._again[answer.r]
        sentence = (
            f"Let {answer.r} ask with the prompt of {before}, of {length}, as soon as {before} has"
            " its answer, and nobody in between. The engine declares that it restores something of"
            f" a prompt of {count(self._repeats, 'token')} and more then. However it restores"
            " nothing, and does not say why: a contradiction."
        )
        line = f"{named(answer.r)} restored nothing of its {length}, which {before} had just asked"
        return Finding(anomaly=LOST, r=answer.r, sentence=sentence, line=line)

    def _left(self, answer: Answer) -> Finding:
        length = count(len(self._requests[answer.r].tokens), "token")
        unused = one_line(answer.unused)
        less = str(answer.restored) if answer.restored else "nothing"
        sentence = (
            f"Let {answer.r} ask with a prompt of {length}, and nobody beside it. The engine says"
            f" what it keeps, and that {unused}. However it restores {less}: a"
            " contradiction."
        )
        line = f"{named(answer.r)} restored {less} of its {length}: {unused}"
        return Finding(anomaly=LOST, r=answer.r, sentence=sentence, line=line)

    def _foreign(self, answer: Answer, reach: int, whose: str) -> Finding:
        asked = self._requests[answer.r]
        overlap = (
            f"begins like {whose} for {count(reach, 'token')}"
            if reach
            else "begins like no request of its identity"
        )
        sentence = (
            f"Let {answer.r} ask with a prompt of {count(len(asked.tokens), 'token')}, which"
            f" {overlap} and like none for more. However the engine restores"
            f" {count(answer.restored, 'token')} of it, which nobody of its identity computed: a"
            " contradiction."
        )
        line = (
            f"{named(answer.r)} restored {count(answer.restored, 'token')}; other requests share"
            f" {reach} with its prompt"
        )
        return Finding(anomaly=FOREIGN, r=answer.r, sentence=sentence, line=line)

    def _missing(self, r: str, how: str, outcome: str) -> Finding:
        asked = self._requests[r]
        sentence = (
            f"Let {r} ask for {count(asked.generate, 'token')} after a prompt of"
            f" {count(len(asked.tokens), 'token')}, and wait for its answer. However {how}: a"
            " contradiction."
        )
        return Finding(anomaly=MISSING, r=r, sentence=sentence, line=f"{named(r)} {outcome}")

    def _differs(self, answer: Answer, cold: Cold, compared: Comparison) -> Finding:
        asked = self._requests[answer.r]
        at = compared.at
        restored = {-1: "", 0: ", none of them restored"}.get(
            answer.restored, f", {answer.restored} of them restored"
        )
        sentence = (
            f"Let {answer.r} answer a prompt of {count(len(asked.tokens), 'token')}{restored}."
            f" Without the cache token {at + 1} of the answer is"
            f" {_format_tokens(cold.tokens, cold.logprobs, at - cold.start)}; however it is"
            f" {_format_tokens(answer.tokens, answer.logprobs, at)}{_by(compared, cold)}: a contradiction."  # noqa: E501
        )
        return Finding(
            anomaly=DIFFERS,
            r=answer.r,
            sentence=sentence,
            line=_differing(answer, cold, compared),
            cause=cold.cause,
        )


def _pair(cold: Cold) -> str:
    """Say which two answers of the baseline lie furthest apart, as a clause."""
    if cold.floor_beside < 0:
        return ""
    return f", of a prompt of {count(cold.floor_tokens, 'token')} asked alone and {_second(cold)}"


def _second(cold: Cold) -> str:
    """Say how the second of the two answers was asked for."""
    return f"beside {count(cold.floor_beside, 'other')}" if cold.floor_beside > 0 else "again"


def _unlike_itself(cold: Cold) -> Finding:
    cause = BATCH if cold.floor_beside else AGAIN
    many = cold.floor >= BEYOND
    how = "other tokens" if many else f"logprobs that differ by {cold.floor:.1e}"
    limit = (
        ""
        if many
        else f": a tolerance of {cold.tolerance:.1e}, where {cold.dtype} allows {cold.ceiling:.1e}"
    )
    who = "; several servers may answer at this address" if cause == AGAIN else ""
    where = _pair(cold).removeprefix(", of ") or "the same prompt twice"
    return Finding(
        anomaly=UNLIKE,
        r=cold.r,
        cause=cause,
        sentence=(
            f"Let the engine answer without its cache {where}. Nothing else is different; however"
            f" it answers with {how}{limit}{who}: a contradiction."
        ),
        line=f"request {cold.r}: asked {_second(cold)} without the cache, the answer has {how}",
    )


def _identity(request: Submitted) -> tuple[str, str, object]:
    return request.salt, request.adapter, request.media


def _format_tokens(tokens: Sequence[int], logprobs: Sequence[float | None], at: int) -> str:
    if at >= len(tokens):
        return "not there"
    if not logprobs:
        return str(tokens[at])
    logprob = logprobs[at]
    number = f"{logprob:.6f}" if is_number(logprob) else "no number"
    return f"{tokens[at]} with the logprob {number}"


def _differing(answer: Answer, cold: Cold, compared: Comparison) -> str:
    """Say in one line which token, or which logprob, is another one without the cache."""
    at = compared.at
    with_cache = _token(answer.tokens, at)
    without = _token(cold.tokens, at - cold.start)
    if with_cache != without:
        return (
            f"request {answer.r} answered token {at + 1} as {with_cache}; without the cache it is"
            f" {without}"
        )
    return (
        f"request {answer.r} answered token {at + 1} with a logprob that is off by"
        f" {compared.largest:.1e}"
    )


def _token(tokens: Sequence[int], at: int) -> str:
    return str(tokens[at]) if at < len(tokens) else "missing"


def _by(compared: Comparison, cold: Cold) -> str:
    if compared.kind != "logprob":
        return ""
    floor = f"the tolerance {cold.tolerance:.1e} (noise floor {cold.floor:.1e})"
    return f", which differs by {compared.largest:.1e}, more than {floor}"


def _measured(cold: Cold, compared: Comparison, restored: bool, wrong: bool) -> Measured:
    tolerance = cold.tolerance
    return Measured(
        dtype=cold.dtype,
        what="logprobs",
        floor=cold.floor,
        tolerance=tolerance,
        least=tolerance,
        ceiling=cold.ceiling,
        largest=compared.largest,
        share=compared.largest / tolerance if tolerance else 0.0,
        rows=compared.rows,
        restored_rows=compared.rows if restored else 0,
        beyond=int(wrong),
    )
