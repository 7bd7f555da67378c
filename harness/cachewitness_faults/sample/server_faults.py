"""Seeded faults of the sample engine: mechanisms of real bugs, of which its answers alone can
tell.
"""

from __future__ import annotations

from typing import Any

from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness.systems.sample import faults
from cachewitness.systems.sample.model import added
from cachewitness.systems.sample.server import Request

_SAMPLE: dict[str, Any] = {"checker": "answers", "engines": ("sample",), "level": "answers"}
_RESUMES = {**_SAMPLE, "checker": "resumes"}
"""Faults that show in the states that it tells (`resumes=told`)."""
SHORT = 40


@mutant(
    name="snapshot-stays-aliased",
    mirrors="FreeToken#287",
    anomaly="answer-differs",
    group="H",
    **_SAMPLE,
)
def _aliased(engine: Any) -> None:
    """A state's page gets its name while the request goes on writing its state into it."""

    def token(original: Any, request: Request) -> None:
        original(request)
        if request.states and request.states[-1].name is not None:
            request.states[-1].state = request.state

    wrap(engine.server, "_token", token)


@mutant(
    name="short-prompts-dropped",
    mirrors="ml-explore/mlx-lm (prompts below a length are not kept)",
    anomaly="lost-repeat",
    group="N",
    **_SAMPLE,
)
def _dropped(engine: Any) -> None:
    """Of a prompt of fewer than 40 tokens nothing is found again."""

    def resume(original: Any, request: Request) -> None:
        if len(request.tokens) >= SHORT:
            original(request)

    wrap(engine.server, "resume", resume)


@mutant(
    name="newest-state-tried-alone",
    mirrors="llama.cpp#20428",
    anomaly="lost-repeat",
    group="N",
    **_SAMPLE,
)
def _newest(engine: Any) -> None:
    """Of the states that begin like a prompt the newest is tried alone; if it lies behind where the
    two part, one in front of that is not used though it fits.
    """

    def resume(original: Any, request: Request) -> None:
        original(request)
        server = engine.server
        first = tuple(request.tokens[: server.block])
        states = [
            page
            for (what, salt, tokens), page in server.cache.named.items()
            if (what, salt, tokens[: server.block]) == ("state", request.salt, first)
        ]
        if request.computed and states[-1] is not request.states[0]:
            server.let_go(request)
            request.computed = 0
            request.state = request.total = server.model.empty

    wrap(engine.server, "resume", resume)


@mutant(
    name="restored-into-another-slot",
    mirrors="sglang#33450",
    anomaly="answer-differs",
    group="F",
    **_SAMPLE,
)
def _swapped(engine: Any) -> None:
    """Of two requests that resume in one step, each gets the other's state."""

    def admit(original: Any) -> None:
        server = engine.server
        before = list(engine.server.running)
        original()
        resumed = [one for one in server.running if one not in before and one.computed]
        if len(resumed) > 1:
            first, second = resumed[:2]
            first.state, second.state = second.state, first.state

    wrap(engine.server, "admit", admit)


@mutant(
    name="cancelled-block-keeps-its-name",
    mirrors="vllm#43569",
    anomaly="answer-differs",
    group="B",
    **_SAMPLE,
)
def _half(engine: Any) -> None:
    """Blocks are named when they are scheduled, and a client that goes away in the middle of one
    leaves the name behind.
    """

    def cancel(original: Any, r: str) -> None:
        server = engine.server
        request = next((one for one in server.running if one.r == r), None)
        begun = request is not None and request.computed % server.block
        if request is not None and begun and server.cache.enabled:
            stop = (request.computed // server.block + 1) * server.block
            if stop <= len(request.tokens) and (server.cache.free or server.cache.idle):
                snapshot = server.cache.take()
                snapshot.state = request.state
                snapshot.seen = (request.r, stop)
                request.states.append(snapshot)
                server.cache.publish(request.keys[-1], server.name(request, "keys", stop))
                server.cache.publish(snapshot, server.name(request, "state", stop))
        original(r)

    wrap(engine.server, "cancel", cancel)


@mutant(
    name="name-without-salt", mirrors="vllm#53495", anomaly="foreign-restore", group="I", **_SAMPLE
)
def _unsalted(engine: Any) -> None:
    """The names of pages leave the salt out."""

    def name(original: Any, request: Request, what: str, length: int) -> Any:
        kind, _, tokens = original(request, what, length)
        return kind, "", tokens

    wrap(engine.server, "name", name)


@mutant(
    name="resumed-behind-the-snapshot",
    mirrors="llama.cpp#19924",
    anomaly="state-position-skew",
    group="A",
    **_RESUMES,
)
def _behind(engine: Any) -> None:
    """A request goes on behind all keys that are found, also where the state was taken earlier."""

    def resume(original: Any, request: Request) -> None:
        original(request)
        server = engine.server
        while request.computed and request.computed + server.block < len(request.tokens):
            keys = server.cache.find(server.name(request, "keys", request.computed + server.block))
            if keys is None:
                break
            request.keys.append(server.cache.hold(keys))
            request.computed += server.block
            for key in keys.keys:
                request.total = added(request.total, key)

    wrap(engine.server, "resume", resume)


@mutant(
    name="name-of-the-first-block-and-the-length",
    mirrors="openvino.genai#3722",
    anomaly="stale-hit",
    group="I",
    **_RESUMES,
)
def _first_block(engine: Any) -> None:
    """The name of a page has the tokens of the first block and their number, so prompts that
    part later have one name.
    """

    def name(original: Any, request: Request, what: str, length: int) -> Any:
        kind, salt, tokens = original(request, what, length)
        return kind, salt, (length, *tokens[: engine.server.block])

    wrap(engine.server, "name", name)


@mutant(
    name="preempted-is-lost", mirrors="vllm#37746", anomaly="answer-missing", group="O", **_SAMPLE
)
def _lost(engine: Any) -> None:
    """A request that loses its pages is not put back into the queue."""

    def preempt(original: Any, request: Request) -> None:
        original(request)
        engine.server.waiting.remove(request)

    wrap(engine.server, "preempt", preempt)


@mutant(
    name="longest-prompt-a-block-short",
    mirrors="vllm#40384",
    anomaly="answer-missing",
    group="O",
    **_SAMPLE,
)
def _short_of_a_block(engine: Any) -> None:
    """The longest prompt counts a page that is not there, as a placeholder's of which nobody says
    that it is one.
    """
    engine.server.cache.free.pop()


@mutant(
    name="longest-prompt-is-one-too-long",
    mirrors="vllm-project/vllm (a prompt as long as the limit, `>=` where `>` is meant)",
    anomaly="answer-missing",
    group="O",
    **_SAMPLE,
)
def _one_too_long(engine: Any) -> None:
    """A prompt is refused that is just as long as the longest."""

    def submit(original: Any, op: Any) -> None:
        original(op)
        server = engine.server
        if len(op.tokens) >= server.longest:
            server.ended.append(server.waiting.pop().answer("refused"))

    wrap(engine.server, "submit", submit)


@mutant(
    name="pad-rows-move-states",
    mirrors="sglang#30974",
    anomaly="baseline-differs",
    group="F",
    **_SAMPLE,
)
def _padded(engine: Any) -> None:
    """What pads a batch goes into the states of those who run beside others, cached or not."""

    def choose(original: Any, state: Any, total: Any, count: int, noise: float) -> Any:
        return original(state, total, count, noise + 1e-3 * (len(engine.server.running) - 1))

    wrap(engine.server.model, "choose", choose)


MUTANTS = declared(globals())
FAULTS = {fault.name: fault for fault in (*faults.MUTANTS, *MUTANTS)}
"""All of them by name, with the one that the documentation shows."""
