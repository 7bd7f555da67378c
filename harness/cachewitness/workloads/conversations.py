"""Traffic as a router sees it: conversations behind shared system prompts, equal requests at a
time, and evaluations whose examples are shared.

Some users have a salt or an adapter of their own, so that equal prompts are not equal. The pool
holds what two conversations need at a time, so blocks are evicted between turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cachewitness.core.trace_format import Trace, length_of
from cachewitness.workloads.scenarios.shape import Script, Shape
from cachewitness.workloads.source import Seeded, Source

_SYSTEMS, _USERS, _TURNS = 2, 4, 3
_TWICE, _EVEN, _EVALUATES, _RESETS = 40, 40, 30, 4
"""In so many of a hundred turns the same is asked twice at a time, the prompt ends where a block
does (so that both compute that block), an evaluation goes on, and every prefix is forgotten."""


@dataclass
class _User:
    """Whoever talks: the prompt so far, and what is beside its tokens."""

    name: str
    prompt: str
    identity: dict[str, Any] = field(default_factory=dict)
    turn: int = 0


def conversations(shape: Shape, number: int) -> Trace:
    """Return the traffic of a number."""
    source = Seeded(f"conversations-{number}")
    script = Script(
        shape,
        f"conversations-{number}",
        "conversations behind shared system prompts",
        "harness/cachewitness/workloads/conversations.py",
    )
    users = [_user(source, shape, index) for index in range(_USERS)]
    evaluation = f"shots:{2 * shape.unit + source.integer(0, 3)}"
    longest = 0
    for round_ in range(_TURNS):
        for index in sorted(range(_USERS), key=lambda _: source.integer(0, 99)):
            longest = max(longest, _turn(script, source, users[index]))
            if source.chance(_EVALUATES):
                _ask(script, [f"q{round_}.{index}"], f"{evaluation} q{round_}.{index}:3", 1, {})
            if source.chance(_RESETS):
                script.reset()
    return script.trace(2 * shape.pages(longest) + 1)


def _user(source: Source, shape: Shape, index: int) -> _User:
    system = source.integer(0, _SYSTEMS - 1)
    tokens = (2 + system) * shape.unit + source.integer(-1, 1)
    identity = source.choice(({}, {}, {"salt": "s1"}, {"adapter": "a1"}))
    return _User(f"u{index}", f"system{system}:{tokens}", dict(identity))


def _turn(script: Script, source: Source, user: _User) -> int:
    """Ask the next question of a conversation, perhaps twice at a time; return the length of all
    that was said by then.
    """
    unit = script.shape.unit
    tokens = source.integer(1, unit + unit // 2)
    if source.chance(_EVEN):
        tokens = unit - length_of(user.prompt) % unit
    prompt = f"{user.prompt} {user.name}.{user.turn}:{tokens}"
    r = f"{user.name}t{user.turn}"
    twice = [f"{r}b"] if source.chance(_TWICE) else []
    answer = source.integer(1, unit // 2 + 1)
    _ask(script, [r, *twice], prompt, answer, user.identity)
    user.prompt = f"{prompt} @{r}:{answer}"
    user.turn += 1
    return length_of(user.prompt)


def _ask(
    script: Script, names: list[str], prompt: str, answer: int, identity: dict[str, Any]
) -> None:
    """Serve one prompt for some requests at a time."""
    for r in names:
        script.submit(r, prompt, **identity)
    for _ in range(2):
        script.step(*((r, length_of(prompt)) for r in names))
    script.decode(answer, *names)
    for r in names:
        script.finish(r)
