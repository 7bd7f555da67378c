"""Asks all arms, and keeps of every position what the server answered and what it restored.

* `off`: one cold request of some tokens. Its own tokens are what all others continue. Where the
  question gives continuations, one cold request at each place in them, with a bias on the token
  that follows there, so that its logarithm is among those that come (they are of the
  probabilities before the bias).
* `noise`: at a few positions the very requests of the cached arms, asked cold. Their batches are
  cut otherwise than those of `off` (the continuation is computed with the prompt, not token by
  token), which is what a sound hit does as well. The same cold request twice would measure nothing:
  two of them are equal to the bit. At a given place it is the other way round: the prompt without
  its last token, which a bias then makes the first answer.
* `foreign`: of each prefix one question, cold, behind the text of another prefix: what a cache that
  restores somebody else's prompt would answer. If that moves nothing beyond the noise, the run
  could not have found such a cache.
* `hit`: before each request the shared prefix alone is asked, so that a hit ends there. A server
  that keeps salts apart gets a salt for each position, so that no question finds what an earlier
  position of it left.
* `replay`: the whole prompt is asked before.
* `tier`: the same under a salt of its own, and then the server is told to forget what lies in its
  own pools, so that what it restores comes from a second tier.
* `against`: another server is asked the same, as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, Protocol

from cachewitness._util.errors import UsageError
from cachewitness.engines.answers import BackendError
from cachewitness.parity.likelihood.asking import Manner, Served, Subject, new_salt
from cachewitness.parity.likelihood.questions import Question
from cachewitness.parity.likelihood.steps import Answered, Step

OFF, NOISE, FOREIGN, AGAINST = "off", "noise", "foreign", "against"
HIT, REPLAY, TIER = "hit", "replay", "tier"
ARMS = (HIT, REPLAY)
"""What is asked unless arms are named."""
COLD = (OFF, NOISE, FOREIGN)
"""What is asked cold; it is compared with, and not judged."""
BIAS = 100
"""What is added to the logit of a token that is to be answered: the most that servers take."""
Why = Literal[
    "",
    "restored nothing",
    "restored less",
    "restored more",
    "restored too much",
    "restored when cold",
    "no logarithm",
]
Place = tuple[int, int]
"""A question by its index, and a position of its answer."""


class Listener(Protocol):
    """Hears how far it is."""

    def begins(self, arm: str, requests: int) -> None:
        """Note the arm that begins, and how many requests it is."""

    def asked(self) -> None:
        """Note that one of them was answered."""


class Kept(Step, frozen=True, kw_only=True):
    """What an arm answered at one position. `why` says why it does not count; empty if it does.
    With "no logarithm" `best` is empty: the server gave its own token none that is finite.
    """

    restored: int
    why: Why = ""


@dataclass
class Measured:
    """What the arms answered, by place, and the seconds of each. `paths`: the tokens behind the
    prompt at each position of a question. `warm`: of so many questions the cold request restored
    something, or did not say, so they are not compared. `broken_off`: why a server answered no
    further; empty if all was asked.
    """

    questions: Sequence[Question]
    cold: dict[int, list[Step]] = field(default_factory=dict)
    paths: dict[int, list[list[int]]] = field(default_factory=dict)
    warm: int = 0
    arms: dict[str, dict[Place, Kept]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    broken_off: str = ""


@dataclass(frozen=True)
class Plan:
    """How many tokens of each answer are compared, at how many of them the noise is measured, and
    the least share of what could be restored that counts as a hit.
    """

    positions: int = 8
    noise: int = 2
    min_share: float = 0.5

    def noisy(self, index: int, length: int, *, given: bool = False) -> list[int]:
        """Return the positions of one question at which noise is measured: never the first unless
        it is given, where the request would be the cold one itself; over all questions each
        position as often.
        """
        first = 0 if given else 1
        places = length - first
        count = min(self.noise, places)
        return sorted({first + (index + turn * places // count) % places for turn in range(count)})


class Asker:
    """Asks the arms one request at a time: what a request restores depends on the one before."""

    def __init__(
        self,
        server: Subject,
        cold: Subject | None,
        other: Subject | None,
        manner: Manner,
        plan: Plan,
        listener: Listener,
    ) -> None:
        self._server = server
        self._cold = cold or server
        self._other = other
        self._manner = manner
        self._plan = plan
        self._listener = listener

    def run(self, questions: Sequence[Question], arms: Sequence[str]) -> Measured:
        """Ask everything. Raises BackendError if a server stops answering before there is a
        position to compare, UsageError if what it answers until then cannot be read.
        """
        found = Measured(questions)
        ways: dict[str, Callable[[Measured], None]] = {
            OFF: self._off,
            NOISE: self._noise,
            FOREIGN: self._foreign,
            HIT: self._hit,
            REPLAY: self._replay,
            TIER: self._tier,
            AGAINST: self._against,
        }
        for arm in (*COLD, *arms):
            began = monotonic()
            found.arms[arm] = {}
            try:
                ways[arm](found)
            except (BackendError, UsageError) as error:
                if not any(answers for name, answers in found.arms.items() if name not in COLD):
                    raise
                found.broken_off = " ".join(str(error).split())
            found.seconds[arm] = round(monotonic() - began, 1)
            if found.broken_off:
                break
        return found

    def _off(self, found: Measured) -> None:
        positions = self._plan.positions
        nodes = [question.nodes(positions) for question in found.questions]
        self._listener.begins(OFF, sum(max(1, len(some)) for some in nodes))
        for index, question in enumerate(found.questions):
            if question.given:
                asked = self._given(question, index, nodes[index])
            else:
                answer = self._asked_cold(question.tokens, positions, index)
                self._listener.asked()
                asked = [
                    (answer, [step.token for step in answer.steps[:at]], step)
                    for at, step in enumerate(answer.steps)
                ]
            if any(answer.restored for answer, _, _ in asked):
                found.warm += 1
            elif len(asked) < 2 and not question.given:
                raise UsageError(f"{self._cold.url} ends an answer at its first token")
            else:
                found.paths[index] = [path for _, path, _ in asked]
                found.cold[index] = [step for _, _, step in asked]

    def _given(
        self, question: Question, index: int, nodes: Sequence[tuple[list[int], list[int]]]
    ) -> list[tuple[Answered, list[int], Step]]:
        """Ask at the places of given continuations, at each again for a token that is not among
        the best ones.
        """
        asked = []
        for path, after in nodes:
            missing = after
            while missing:
                prompt = question.tokens + path
                answer = self._asked_cold(prompt, 1, index, **_biased(missing[0]))
                step = answer.steps[0]
                _check_biased(self._cold, step, missing[0])
                asked.append((answer, path, Step(missing[0], step.best)))
                missing = [token for token in missing if token not in step.best]
            self._listener.asked()
        return asked

    def _noise(self, found: Measured) -> None:
        places = [
            (index, position)
            for index, steps in found.cold.items()
            if self._plan.noise
            for position in self._plan.noisy(
                index, len(steps), given=bool(found.questions[index].given)
            )
        ]
        self._listener.begins(NOISE, len(places))
        for place in places:
            found.arms[NOISE][place] = self._again(found, place)

    def _again(self, found: Measured, place: Place) -> Kept:
        """Ask cold, in other batches than those of the cold run."""
        prompt = _continued(found, place)
        if not found.questions[place[0]].given:
            return self._kept_cold(prompt, place)
        answer = self._asked_cold(prompt[:-1], 2, place[0], **_biased(prompt[-1]))
        self._listener.asked()
        if [step.token for step in answer.steps[:1]] != prompt[-1:] or len(answer.steps) < 2:
            raise UsageError(f"{self._cold.url} does not heed `logit_bias`")
        return _kept(answer, "restored when cold" if answer.restored else "")

    def _foreign(self, found: Measured) -> None:
        first: dict[str, Place] = {}
        for place in found.arms[NOISE]:
            first.setdefault(found.questions[place[0]].prefix, place)
        places = [*first.values()]
        self._listener.begins(FOREIGN, len(places))
        for place, (index, _) in zip(places, [*places[1:], *places[:1]], strict=True):
            other = found.questions[index]
            own = _continued(found, place)[found.questions[place[0]].shared :]
            prompt = other.tokens[: other.shared] + own
            found.arms[FOREIGN][place] = self._kept_cold(prompt, place, **_bias(found, place))

    def _hit(self, found: Measured) -> None:
        self._listener.begins(HIT, sum(map(len, found.cold.values())))
        for prefix in dict.fromkeys(question.prefix for question in found.questions):
            members = [index for index in found.cold if found.questions[index].prefix == prefix]
            # Without salts who asks a position finds what those that were asked before it left, and
            # noise is never measured at the first one.
            positions = range(max((len(found.cold[index]) for index in members), default=0))
            for position in reversed(positions):
                self._hits(found, [(index, position) for index in members])

    def _hits(self, found: Measured, places: Sequence[Place]) -> None:
        """Ask one position of all questions of a prefix behind that prefix."""
        fields = self._manner.warm(new_salt())
        warmed = False
        for place in places:
            question = found.questions[place[0]]
            if place[1] >= len(found.cold[place[0]]):
                continue
            if not (warmed and self._manner.salted):
                self._server.ask(question.tokens[: question.shared], 1, "a prefix", **fields)
                warmed = True
            answer = self._asked(self._server, found, place, **fields)
            least = self._plan.min_share * question.shared
            length = len(question.tokens) + place[1]
            why = _bounded(answer, least, question.common, length)
            found.arms[HIT][place] = _kept(answer, why)

    def _replay(self, found: Measured) -> None:
        self._listener.begins(REPLAY, sum(map(len, found.cold.values())))
        for index, steps in found.cold.items():
            prompt = found.questions[index].tokens
            fields = self._manner.warm(new_salt())
            self._server.ask(prompt, 1, f"question {index}", **fields)
            for position in range(len(steps)):
                answer = self._asked(self._server, found, (index, position), **fields)
                length = len(prompt) + position
                why = _bounded(answer, self._plan.min_share * len(prompt), length - 1, length)
                found.arms[REPLAY][index, position] = _kept(answer, why)

    def _tier(self, found: Measured) -> None:
        server = self._server
        assert isinstance(server, Served)
        self._listener.begins(TIER, sum(map(len, found.cold.values())))
        for position in range(max(map(len, found.cold.values()), default=0)):
            places = [(i, position) for i, steps in found.cold.items() if position < len(steps)]
            salts = {place: self._manner.warm(new_salt()) for place in places}
            for place, fields in salts.items():
                server.ask(_continued(found, place), 1, f"question {place[0]}", **fields)
            server.forget()
            for place, fields in salts.items():
                length = len(_continued(found, place))
                answer = self._asked(server, found, place, **fields)
                why = _bounded(answer, self._plan.min_share * length, length - 1, length)
                found.arms[TIER][place] = _kept(answer, why)

    def _against(self, found: Measured) -> None:
        assert self._other is not None
        self._listener.begins(AGAINST, sum(map(len, found.cold.values())))
        for index, steps in found.cold.items():
            for position in range(len(steps)):
                answer = self._asked(self._other, found, (index, position))
                found.arms[AGAINST][index, position] = _kept(answer, "")

    def _kept_cold(self, prompt: list[int], place: Place, **fields: Any) -> Kept:
        answer = self._asked_cold(prompt, 1, place[0], **fields)
        self._listener.asked()
        return _kept(answer, "restored when cold" if answer.restored else "")

    def _asked_cold(self, prompt: list[int], tokens: int, index: int, **fields: Any) -> Answered:
        fields |= self._manner.cold()
        answer = self._cold.ask(prompt, tokens, f"question {index}", **fields)
        for step in answer.steps:
            if not step.best:
                raise UsageError(
                    f"{self._cold.url} gives its own token {step.token} no finite logarithm, cold"
                )
        return answer

    def _asked(self, server: Subject, found: Measured, place: Place, **fields: Any) -> Answered:
        fields |= _bias(found, place)
        answer = server.ask(_continued(found, place), 1, f"question {place[0]}", **fields)
        self._listener.asked()
        return answer


def _continued(found: Measured, place: Place) -> list[int]:
    """Return a prompt with what the cold run answered, or the question gives, in front of a
    position.
    """
    index, position = place
    return found.questions[index].tokens + found.paths[index][position]


def _bias(found: Measured, place: Place) -> dict[str, Any]:
    """Return what a request has beside its prompt so that a given token's logarithm comes."""
    index, position = place
    given = found.questions[index].given
    return _biased(found.cold[index][position].token) if given else {}


def _biased(token: int) -> dict[str, Any]:
    return {"logit_bias": {str(token): BIAS}}


def _check_biased(server: Subject, step: Step, token: int) -> None:
    if token not in step.best:
        raise UsageError(
            f"{server.url} does not say how likely token {token} is, although `logit_bias` asked"
            " for it; the task's likelihoods cannot be had there"
        )


def _bounded(answer: Answered, least: float, most: int, length: int) -> Why:
    """Return why a request of so many tokens is no hit of the kind that its arm is for; empty if
    it is one.
    """
    if answer.restored >= length:
        return "restored too much"
    if answer.restored <= 0:
        return "restored nothing"
    if answer.restored < least:
        return "restored less"
    return "restored more" if answer.restored > most else ""


def _kept(answer: Answered, why: Why) -> Kept:
    step = answer.steps[-1]
    why = why or ("" if step.best else "no logarithm")
    return Kept(step.token, step.best, restored=answer.restored, why=why)
