"""Judges from what a request goes on, where an engine that tells no pages tells the states that it
keeps.

Such an engine names the request and the number of tokens that a state was kept behind, in a log for
instance. Whether it is the state that the prompt needs follows from the tokens alone. What the
state holds is seen in the answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.wording import count
from cachewitness.core.events import Answer, Answering, Header, Resumed, Submitted
from cachewitness.core.ledger.ledger import Ledger

STALE, SKEW, HOLE, FABRICATED = (
    "stale-hit",
    "state-position-skew",
    "window-hole",
    "fabricated-snapshot",
)


class ResumesRight(Checker):
    """A request goes on from a state of its own prefix, which was kept where it goes on."""

    name = "resumes"
    summary = (
        "a request goes on from a state of its own prefix, taken where it goes on, whose window is"
        " whole"
    )
    anomalies = (STALE, SKEW, HOLE, FABRICATED)
    lacks = "a request that goes on from a kept state"

    def __init__(self) -> None:
        super().__init__()
        self._answering = Answering("float32", 0)
        self._prompts: dict[str, list[int]] = {}
        self._generate: dict[str, int] = {}
        self._answers: dict[str, list[int]] = {}
        self._first: dict[str, Resumed] = {}

    def not_applicable(self, header: Header) -> str:
        if header.level != "answers" or header.rules.answering is None:
            return "the engine tells its pages, by which it is judged"
        self._answering = header.rules.answering
        own = header.not_applicable.get(self.name, "")
        return own or (
            ""
            if self._answering.resumes
            else "the engine does not tell from which states its requests go on"
        )

    def handlers(self) -> dict[type, Handler]:
        return {Submitted: self.on_submit, Answer: self.on_answer, Resumed: self.on_resume}

    def on_submit(self, ledger: Ledger, event: Submitted) -> Found:
        """Remember the prompt, and how much may be generated behind it."""
        self._prompts[event.r] = event.tokens
        self._generate[event.r] = event.generate
        return None

    def on_answer(self, ledger: Ledger, event: Answer) -> Found:
        """Remember what was generated; judge a request that went on from a state of its own when
        it was first admitted.
        """
        self._answers[event.r] = event.tokens
        first = self._first.get(event.r)
        if first is None or first.of != event.r or event.restored <= 0:
            return None
        return [
            self._found(
                FABRICATED,
                first,
                f"it is a state of {event.r} itself, of which nothing was computed before",
            )
        ]

    def on_resume(self, ledger: Ledger, event: Resumed) -> Found:
        """Judge a state by whose tokens it has seen, how many, and from which position on it has
        them.
        """
        self.opportunities += 1
        self._first.setdefault(event.r, event)
        for anomaly, problem in (
            (FABRICATED, self._unmade),
            (STALE, self._foreign),
            (SKEW, self._skewed),
            (HOLE, self._holed),
        ):
            if wrong := problem(event):
                return [self._found(anomaly, event, wrong)]
        return None

    def _found(self, anomaly: str, event: Resumed, wrong: str) -> Finding:
        asked = f"Let {event.r} ask with a prompt of {count(len(self._prompts[event.r]), 'token')}"
        sentence = (
            f"{asked}, and go on behind {event.at} of them from a state that is kept. However"
            f" {wrong}: a contradiction."
        )
        return Finding(
            anomaly=anomaly, r=event.r, sentence=sentence, line=self._line(anomaly, event)
        )

    def _line(self, anomaly: str, event: Resumed) -> str:
        """Say in one line from which state a request goes on."""
        head = f"request {event.r} resumed at {event.at}"
        if not event.of:
            return f"{head} from a state that the engine never kept"
        if anomaly == HOLE:
            window = f"its window of {self._answering.window} tokens"
            return f"{head}; the state begins at {event.first}, inside {window}"
        if anomaly == STALE:
            return f"{head} from a state of {event.of}, whose token {self._same(event) + 1} differs"
        line = f"{head} from a state of {event.of} after {count(event.taken, 'token')}"
        return f"{line} before it computed any" if event.of == event.r else line

    def _same(self, event: Resumed) -> int:
        """Return with how many tokens the prompt and what the state has seen begin alike."""
        return shared_tokens(self._prompts[event.r][: event.at], self._seen(event))

    def _seen(self, event: Resumed) -> list[int]:
        return [*self._prompts[event.of], *self._answers.get(event.of, ())][: event.taken]

    def _unmade(self, event: Resumed) -> str:
        """Say so if nobody kept such a state, or the one that was kept has seen fewer tokens, or
        more than there are.
        """
        if not event.of:
            return "the engine never said that it keeps such a state"
        most = len(self._prompts[event.of]) + self._generate[event.of]
        if event.taken > most:
            return (
                f"the state was kept behind {count(event.taken, 'token')} of {event.of}, which has"
                f" {most} with its answer"
            )
        if event.taken < event.at and self._answering.resumes != "recurrent":
            return (
                f"the state was kept behind {count(event.taken, 'token')} of {event.of}, and nobody"
                " computed the others"
            )
        return ""

    def _foreign(self, event: Resumed) -> str:
        """Say where the tokens that the state has seen part from the prompt; what is not known
        of an answer is not compared.
        """
        seen = self._seen(event)
        own = self._prompts[event.r][: event.at]
        same = self._same(event)
        if same == min(len(own), len(seen)):
            return ""
        return (
            f"it is a state of {event.of}, whose token {same + 1} is {seen[same]} and not"
            f" {own[same]}"
        )

    def _skewed(self, event: Resumed) -> str:
        """Say so if a recurrent state was taken elsewhere."""
        if self._answering.resumes != "recurrent" or event.taken == event.at:
            return ""
        return f"the state was taken behind {count(event.taken, 'token')} of {event.of}"

    def _holed(self, event: Resumed) -> str:
        """Say so if the first query's window reaches further back than the state."""
        oldest = max(0, event.at - self._answering.window + 1)
        if self._answering.resumes != "sliding" or event.first <= oldest:
            return ""
        window = f"a window of {self._answering.window} tokens"
        return (
            f"the state begins at position {event.first}, and {window} at position {event.at} reads"
            f" from {oldest} on"
        )


def shared_tokens(prompt: Sequence[int], other: Sequence[int]) -> int:
    """Return with how many tokens two prompts begin alike."""
    return next(
        (i for i, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b),
        min(len(prompt), len(other)),
    )
