"""A server behind a URL as an engine at answers level.

A trace begins with nothing cached of it: every trace has salts of its own, or texts of its own
where the server does not heed salts.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import NamedTuple

from cachewitness.core.events import AnswerDtype, Answering, Rules
from cachewitness.core.trace_format import Submit, TraceHeader
from cachewitness.engines.answering import declared
from cachewitness.engines.retries import Absences
from cachewitness.engines.streaming import StreamingEngine
from cachewitness.systems.openai_server.address import NAME, Address
from cachewitness.systems.openai_server.cold_requests import (
    Asker,
    Manner,
    longest_prompt,
    model_of,
    models_of,
    new_salt,
    prove,
    version_of,
)
from cachewitness.systems.openai_server.completion import body
from cachewitness.systems.openai_server.request import NotSent, Request


class ServerChoice(NamedTuple):
    """What the engine's name says of a server: `cold` is a second one without a cache, `block`
    in tokens; `promised`: it is said to keep salts apart, whatever it does.
    """

    warm: Address
    cold: Address | None
    model: str
    dtype: AnswerDtype
    vocabulary: int
    shortest: int
    block: int
    stream: bool
    promised: bool = False


class Known(NamedTuple):
    """What was learned of a server before the first trace. `longest` prompt in tokens, 0: it does
    not say.
    """

    model: str
    version: str
    manner: Manner
    longest: int


_KNOWN: dict[ServerChoice, Known] = {}


def known(settings: ServerChoice) -> Known:
    """Return what is known of a server; it is asked once for a process.

    Raises UsageError if it cannot be judged, ServerFailed if it was there and is not any more.
    """
    if settings in _KNOWN:
        models_of(settings.warm)
    else:
        model = model_of(settings.warm, settings.model)
        warm = Asker(settings.warm, model, settings.vocabulary, stream=settings.stream)
        cold = (
            replace(warm, address=settings.cold, model=model_of(settings.cold, model))
            if settings.cold
            else None
        )
        _KNOWN[settings] = Known(
            model,
            version_of(settings.warm),
            replace(prove(warm, cold, settings.block), promised=settings.promised),
            longest_prompt(settings.warm, model),
        )
    return _KNOWN[settings]


class OpenAiServer(StreamingEngine[Request | NotSent]):
    """A server for one trace; without `caching` every request is asked so that nothing is
    restored for it.
    """

    def __init__(self, header: TraceHeader, settings: ServerChoice, *, caching: bool) -> None:
        self._known = known(settings)
        self._stream = settings.stream
        self._caching = caching
        self._salt = new_salt()
        elsewhere = settings.cold if not caching else None
        self._address = elsewhere or settings.warm
        self._manner = None if elsewhere else self._known.manner
        salted = self._known.manner.salted
        texts = "" if salted else f"{secrets.token_hex(4)}."
        rules = Rules(
            caching=caching,
            answering=Answering(settings.dtype, settings.vocabulary, texts, settings.shortest),
            max_prompt=self._known.longest if elsewhere is None else 0,
        )
        version = (
            f"{self._known.model} at {settings.warm.base},"
            f" {self._known.version or 'which names no version'}"
        )
        self._shortest = settings.shortest
        self._absences = Absences()
        sends = self._known.manner.sends_salts
        super().__init__(declared(NAME, header, rules, version=version, salt=sends))

    def request(self, op: Submit) -> Request | NotSent:
        """Return a request for an answer that must be the known model's, and restore nothing if
        it is asked cold.
        """
        if len(op.tokens) < self._shortest:
            return NotSent(op.r, self.heard)
        salt = f"{self._salt}.{op.salt}" if self._caching else new_salt()
        fields = self._manner.fields(salt, caching=self._caching) if self._manner else {}
        content = body(self._known.model, op, stream=self._stream, **fields)
        cold = "" if self._caching else self._known.manner.way
        left_out = 0 if self._known.manner.zero_left_out else -1
        return Request(
            self._address,
            op,
            content,
            self.heard,
            model=self._known.model,
            cold=cold,
            left_out=left_out,
            absences=self._absences,
        )
