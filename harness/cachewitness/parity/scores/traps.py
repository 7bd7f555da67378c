"""What goes wrong where lm-eval's own client is used to compare caches, said of a task before it
runs. `cachewitness score` avoids all of it; docs/lm-eval-traps.md has where each lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from itertools import takewhile
from typing import NamedTuple

from lm_eval.models.api_models import TemplateAPI

from cachewitness.engines.server_key import NO_KEY, ServerKey
from cachewitness.parity.scores.named_task import NamedTask
from cachewitness.parity.scores.noting import NotingLM
from cachewitness.parity.scores.remote import end_of_sequence

STOPS_MAX = 4
"""So many stop strings are sent by lm-eval's client of chats."""
SHARED_LEAST = 0.5
"""The share of its prompts that a task's questions have in common, if a cache has much to do."""


class OwnRun(NamedTuple):
    """What lm-eval by itself would send: the prompts in units that are counted; their lengths with
    their continuations in tokens, none if these are not known; the parameters of generated answers;
    to how many servers; and the text that ends a sequence, empty if nobody says.
    """

    prompts: Sequence[list[int]]
    lengths: Sequence[int]
    until: Sequence[str]
    answer_max: int
    servers: int
    end: str
    unit: str = "tokens"


def traps_of(
    task: NamedTask,
    tokens_of: Callable[[str], list[int]] | None,
    servers: Sequence[str],
    key: ServerKey = NO_KEY,
) -> list[str]:
    """Return the traps that lm-eval's own run of a task on these servers would be in. Without
    tokens, characters are counted.
    """
    model = NotingLM(tokens_of or (lambda text: [*map(ord, text)]))
    try:
        task.samples(model, drawn=True)
    except Exception as error:
        return [f"it cannot ask the task ({type(error).__name__}: {error})"]
    generation = task.generation
    own = OwnRun(
        prompts=[one.tokens for one in model.wanted],
        lengths=[len(one.tokens) + len(one.given) for one in model.wanted] if tokens_of else [],
        until=generation.get("until", ()),
        answer_max=task.max_tokens if generation else 0,
        servers=len(set(servers)),
        end=end_of_sequence(servers[0], key),
        unit="tokens" if tokens_of else "characters",
    )
    return traps(own, own_max_length())


def own_max_length() -> int:
    """Return the tokens that lm-eval's client of servers sends at most, as it comes."""
    return int(signature(TemplateAPI.__init__).parameters["max_length"].default) - 1


def traps(own: OwnRun, max_length: int) -> list[str]:
    """Return a line for each trap that a run of lm-eval's own would be in."""
    found = [_cut(own, max_length), _examples(own), _stops(own), _end(own), _kept(own)]
    return [line for line in found if line]


def _cut(own: OwnRun, max_length: int) -> str:
    room = max_length - own.answer_max
    if own.answer_max and room <= 0:
        return (
            f"its max_length of {max_length + 1:,} leaves no room beside an answer of"
            f" {own.answer_max:,} tokens: it sends a prompt without its first {-room:,} tokens;"
            " raise max_length in its --model_args"
        )
    long = sum(length > room for length in own.lengths)
    if not long:
        return ""
    answer = f" beside an answer of {own.answer_max:,}" if own.answer_max else ""
    return (
        f"{long:,} of {len(own.lengths):,} prompts are longer than the {room:,} tokens that it"
        f" sends{answer} (max_length={max_length + 1}): it cuts them from the left, each at another"
        " place, so nothing is shared any more; raise max_length in its --model_args"
    )


def _examples(own: OwnRun) -> str:
    shared = _common(own.prompts)
    whole = sum(map(len, own.prompts)) / len(own.prompts)
    if len(own.prompts) < 2 or shared >= SHARED_LEAST * whole:
        return ""
    return (
        f"its prompts share {shared:,} of {whole:,.0f} {own.unit} (it draws other"
        " examples for each question, or has none): a prefix cache has next to nothing to restore;"
        " here, without --random-shots, the task's first documents are the examples"
    )


def _stops(own: OwnRun) -> str:
    if len(own.until) <= STOPS_MAX:
        return ""
    left = ", ".join(map(repr, own.until[STOPS_MAX:]))
    return (
        f"of {len(own.until)} stop strings its client of chats sends the first {STOPS_MAX},"
        f" so an answer does not end at {left}"
    )


def _end(own: OwnRun) -> str:
    if not own.until or not own.end or own.end in own.until:
        return ""
    return (
        f"it sends {own.end!r} as a stop string as well with num_concurrent=1, and does not"
        " with more: compare runs of equal concurrency alone"
    )


def _kept(own: OwnRun) -> str:
    if own.servers < 2:
        return ""
    return (
        "its --use_cache names an answer by its request alone, not by the server: with one"
        " file for both servers the second is never asked"
    )


def _common(prompts: Sequence[list[int]]) -> int:
    first = min(prompts)
    last = max(prompts)
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    )
