"""Seeded faults of the server over ONNX Runtime GenAI: what is done wrong to the library's
generators when they are kept, found, rewound or resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant

_OWN: dict[str, Any] = {
    "checker": "answers",
    "engines": ("onnxruntime-genai",),
    "level": "answers",
    "anomaly": "answer-differs",
}
_FOREIGN = {**_OWN, "anomaly": "foreign-restore"}
_LOST = {**_OWN, "anomaly": "lost-repeat"}
_LEFT = "onnxruntime-genai 0.18 (the last token of an answer is not computed)"
_PENDING = "onnxruntime-genai 0.18 (a snapshot while a token waits to be computed)"
_REFUSED = "onnxruntime-genai 0.18 (a refused rewind has rewound tokens and keys)"
_TWICE = "onnxruntime-genai 0.18 (two rewinds in turn, of buffers that grow)"
_COUNT = "onnxruntime-genai 0.18 (`token_count` counts what is there, computed or not)"
_ONE = "onnxruntime-genai 0.18 (a generator has one snapshot, which the next one replaces)"
_SHORT = "ml-explore/mlx-lm (prompts below a length are not kept)"
SHORT, ALIKE = 40, 8
"""Tokens below which nothing is kept, and tokens by which texts are told apart."""


def _on_every(engine: Any, change: Callable[[Any], None]) -> None:
    """Have `change` done to every conversation that is opened."""

    def opened(original: Any, salt: str) -> Any:
        talk = original(salt)
        change(talk)
        return talk

    wrap(engine.server, "opened", opened)


def _when_resumed(engine: Any, change: Callable[[Any, list[int]], None]) -> None:
    """Have `change` done to every request that goes on from a kept conversation, with the tokens
    that this had.
    """
    server = engine.server

    def admit(original: Any, request: Any) -> None:
        had = {id(talk): talk.tokens() for talk in server.kept}
        original(request)
        if request.restored:
            change(request, had[id(request.conversation)])

    wrap(server, "admit", admit)


@mutant(name="genai-rewound-one-token-short", mirrors="vllm-mlx#683", group="D", **_OWN)
def _short(engine: Any) -> None:
    """A generator keeps a token more than it shares with the prompt."""

    def change(talk: Any) -> None:
        def rewind(original: Any, length: int) -> None:
            original(length + 1 if 0 < length < talk.length() else length)

        if talk.rewinds == "anywhere":
            wrap(talk, "rewind", rewind)

    _on_every(engine, change)


@mutant(name="genai-not-rewound", mirrors="onnxruntime-genai#2140", group="D", **_OWN)
def _unrewound(engine: Any) -> None:
    """The rest of a prompt is appended behind all that a generator had."""

    def change(request: Any, had: list[int]) -> None:
        if request.restored < len(had):
            request.conversation.append(had[request.restored :])

    _when_resumed(engine, change)


@mutant(name="genai-rest-begins-a-token-late", mirrors=_LEFT, group="P", **_OWN)
def _late(engine: Any) -> None:
    """The first token behind what is shared is left out."""

    def change(request: Any, had: list[int]) -> None:
        if request.held < len(request.prompt) - 1:
            request.held += 1

    _when_resumed(engine, change)


@mutant(name="genai-snapshot-one-token-early", mirrors=_PENDING, group="A", **_OWN)
def _early(engine: Any) -> None:
    """A snapshot is made while the last token in front of it waits to be computed."""
    import numpy as np

    def change(talk: Any) -> None:
        waits: list[int] = []

        def append(original: Any, tokens: Any) -> None:
            settle()
            original(tokens[:-1] if len(tokens) > 1 else tokens)
            if len(tokens) > 1:
                chosen = np.full_like(talk.generator.get_logits(), -100.0)
                chosen[..., tokens[-1]] = 100.0
                talk.generator.set_logits(chosen)
                talk.generator.generate_next_token()
                waits.append(tokens[-1])

        def settle() -> None:
            if waits:
                waits.clear()
                talk.generator.get_logits()

        if talk.rewinds == "snapshot":
            wrap(talk, "append", append)

    _on_every(engine, change)


@mutant(name="genai-state-not-restored", mirrors=_REFUSED, group="D", **_OWN)
def _unrestored(engine: Any) -> None:
    """A rewind that the library refuses counts as done: tokens and keys are rewound, states not."""

    def change(talk: Any) -> None:
        def rewind(original: Any, length: int) -> None:
            try:
                original(length)
            except RuntimeError:
                return

        if talk.rewinds == "snapshot":
            talk.rewinds = "anywhere"
            wrap(talk, "rewind", rewind)

    _on_every(engine, change)


@mutant(name="genai-found-by-its-first-tokens", mirrors="openvino.genai#3722", group="I", **_OWN)
def _alike(engine: Any) -> None:
    """A conversation is taken for one of a prompt's if it begins with the same few tokens."""

    def change(talk: Any) -> None:
        def reach(original: Any, prompt: list[int]) -> int:
            had = talk.tokens()
            if had[:ALIKE] == prompt[:ALIKE] and talk.rewinds == "anywhere":
                return min(len(had), len(prompt) - 1)
            found: int = original(prompt)
            return found

        wrap(talk, "reach", reach)

    _on_every(engine, change)


@mutant(name="genai-logits-of-the-turn-before", mirrors="onnxruntime-genai#2555", group="P", **_OWN)
def _stale(engine: Any) -> None:
    """An answer's first token is chosen from the logits that the answer before ended with."""

    def change(talk: Any) -> None:
        last: list[Any] = []

        def append(original: Any, tokens: Any) -> None:
            original(tokens)
            if last:
                logits = talk.generator.get_logits()
                logits[...] = last[-1]
                talk.generator.set_logits(logits)

        def logits(original: Any) -> Any:
            last.append(original())
            return last[-1]

        wrap(talk, "append", append)
        wrap(talk, "logits", logits)

    _on_every(engine, change)


@mutant(name="genai-rewound-twice", mirrors=_TWICE, group="D", **_OWN)
def _twice(engine: Any) -> None:
    """A generator is rewound to a token too much, and then to what it shares."""

    def change(talk: Any) -> None:
        def rewind(original: Any, length: int) -> None:
            if 0 < length < talk.length() - 1:
                original(length + 1)
            original(length)

        if talk.rewinds == "anywhere":
            wrap(talk, "rewind", rewind)

    _on_every(engine, change)


@mutant(name="genai-cancelled-prompt-whole", mirrors="vllm#43569", group="B", **_OWN)
def _whole(engine: Any) -> None:
    """A conversation whose client went away counts as one that holds the whole prompt."""
    server = engine.server

    def keep(original: Any, request: Any) -> None:
        talk = request.conversation
        original(request)
        if talk in server.kept and request.held < len(request.prompt):
            _claim(talk, list(request.prompt))

    wrap(server, "keep", keep)


def _claim(talk: Any, claimed: list[int]) -> None:
    """Have a conversation say that it holds these tokens, until more are appended."""
    own = ("tokens", "length", "rewind", "append")

    def append(original: Any, tokens: list[int]) -> None:
        for name in own:
            delattr(talk, name)
        original(tokens)

    wrap(talk, "tokens", lambda original: claimed)
    wrap(talk, "length", lambda original: len(claimed))
    wrap(talk, "rewind", lambda original, to: claimed.__delitem__(slice(to, None)))
    wrap(talk, "append", append)


@mutant(name="genai-shared-by-two", mirrors="FreeToken#287", group="H", **_OWN)
def _shared(engine: Any) -> None:
    """A conversation stays on offer while a request goes on from it."""
    _when_resumed(engine, lambda request, had: engine.server.kept.insert(0, request.conversation))


@mutant(name="genai-tenants-mixed", mirrors="vllm#53495", group="I", **_FOREIGN)
def _mixed(engine: Any) -> None:
    """A conversation is found for every tenant."""
    server = engine.server

    def admit(original: Any, request: Any) -> None:
        for talk in server.kept:
            talk.identity = request.salt
        original(request)

    wrap(server, "admit", admit)


@mutant(name="genai-restored-counts-the-prompt", mirrors=_COUNT, group="C", **_FOREIGN)
def _counted(engine: Any) -> None:
    """All of a prompt but its last token counts as restored wherever something was."""

    def change(request: Any, had: list[int]) -> None:
        request.restored = len(request.prompt) - 1

    _when_resumed(engine, change)


@mutant(name="genai-short-conversations-dropped", mirrors=_SHORT, group="N", **_LOST)
def _dropped(engine: Any) -> None:
    """Nothing is kept of fewer than 40 tokens."""
    server = engine.server

    def keep(original: Any, request: Any) -> None:
        original(request)
        server.kept = [talk for talk in server.kept if talk.length() >= SHORT]

    wrap(server, "keep", keep)


@mutant(name="genai-snapshot-behind-the-answer", mirrors=_ONE, group="N", **_LOST)
def _behind(engine: Any) -> None:
    """The snapshot of a prompt is replaced by one behind its answer."""
    server = engine.server

    def keep(original: Any, request: Any) -> None:
        original(request)
        if server.ways.rewinds == "snapshot" and server.kept:
            server.kept[-1].snapshot()

    wrap(server, "keep", keep)


MUTANTS = declared(globals())
FAULTS = {fault.name: fault for fault in MUTANTS}
