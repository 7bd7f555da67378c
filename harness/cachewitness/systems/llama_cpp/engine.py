"""llama.cpp's server behind the three methods: when a batch is done, those that came since join
it.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Answer, AnswerDtype, Answering, Event, Resumes, Rules
from cachewitness.core.trace_format import Submit, TraceHeader
from cachewitness.engines.answering import declared
from cachewitness.engines.streaming import StreamingEngine
from cachewitness.systems.llama_cpp.checkpoints import NUMBERED, Checkpoints
from cachewitness.systems.llama_cpp.completion import Completion
from cachewitness.systems.llama_cpp.log import PATIENCE, POLL, Log
from cachewitness.systems.llama_cpp.server import Server, version
from cachewitness.systems.llama_cpp.settings import BLOCK, NAME, settings_of

WHOLE_BITS, HALF_BITS = 31.0, 15.5
"""Bits of a weight in the mean, above which all are float32, or none is narrower than 16."""
VOCABULARY = 256
"""Ids below the special ones."""
REPEATS = 2
"""Of an equal prompt of so many tokens something is restored, or the log shows why not."""
NOTICED = 5.0
"""Seconds in which the server notices that a client went away; where it waits for a slot that takes
one or two."""


class LlamaCpp(StreamingEngine[Completion]):
    """A server as an engine at answers level. `pages` of a trace are blocks of tokens of its
    context.
    """

    def __init__(
        self, header: TraceHeader, model: Path, caching: str, keeps: Resumes, *, log: bool
    ) -> None:
        """Start a server. `keeps`: states, windows of BLOCK tokens, or keys and values alone;
        empty: not known, so the model has a vocabulary of its own. `log`: follow what it writes.
        """
        self._settings = settings_of(header, caching)
        self._caching = caching == "on"
        whole = self._settings.switches["swa_full"]
        self._resumes: Resumes = "full" if keeps == "sliding" and whole else keeps
        window = BLOCK if self._resumes == "sliding" else 0
        # A window that is to be kept whole may be cut, so of its cells nothing is certain.
        self._checkpoints = Checkpoints(keeps, BLOCK if keeps == "sliding" else 0)
        with ExitStack() as opened:
            folder = opened.enter_context(TemporaryDirectory(prefix="cachewitness-"))
            self._log = (
                opened.enter_context(closing(Log(folder))) if log and self._caching else None
            )
            self._server = opened.enter_context(
                closing(Server(model, self._settings, folder + "/"))
            )
            if self._log is not None:
                self._log.await_line("all slots are idle")
            self._vocabulary = VOCABULARY if keeps else self._server.vocabulary()
            self._dtype = "float32" if keeps else dtype_of(model, self._server.bits())
            self._opened = opened.pop_all()
        super().__init__(declared(NAME, header, self._rules(window), version=version()))

    def _rules(self, window: int) -> Rules:
        followed = self._log is not None
        answering = Answering(
            self._dtype,
            self._vocabulary,
            resumes=self._resumes if followed else "",
            window=window if followed else 0,
            repeats=REPEATS if followed else 0,
        )
        return Rules(
            caching=self._caching,
            answering=answering,
            engine_aborts=self._settings.switches["kv_unified"],
            max_prompt=self._server.context() - 1,
        )

    def request(self, op: Submit) -> Completion:
        """Return a request that is sent but for its last byte."""
        marked = (
            {NUMBERED: self._checkpoints.number(op.r, op.tokens)} if self._log is not None else {}
        )
        return Completion(
            self._server.address, op, caching=self._caching, heard=self.heard, marked=marked
        )

    def events_of(self, answer: Answer) -> list[Event]:
        """Return an answer, behind the states from which its request went on."""
        if self._log is None:
            return [answer]
        until = time.monotonic() + PATIENCE
        self._checkpoints.follow(self._log.lines())
        while (
            (answer.restored > 0 or answer.ended == "length")
            and answer.r not in self._checkpoints.over
            and time.monotonic() < until
        ):
            time.sleep(POLL)
            self._checkpoints.follow(self._log.lines())
        if answer.restored >= 0:
            why = self._checkpoints.why(answer.r) if answer.restored == 0 else ""
            answer = replace(answer, why=why, unused=self._checkpoints.unused(answer.r))
        return [*self._checkpoints.resumed(answer.r), answer]

    def gone(self, *, over: bool) -> None:
        """Wait until the server has noticed."""
        self._server.settle(len(self._running), 0.0 if over else NOTICED)

    def quiet(self) -> None:
        """Put the slots through their files, if that is asked for."""
        if self._settings.switches["slot_files"]:
            for slot, tokens in self._server.through_files().items():
                self._checkpoints.brought_back(slot, tokens)

    def close(self) -> None:
        """Let everybody go, and end the server."""
        super().close()
        self._opened.close()


def dtype_of(model: Path, bits: float) -> AnswerDtype:
    """Return the type in which a model computes whose weights have so many bits in the mean.

    Raises UsageError for quantised weights: llama.cpp multiplies with them for few tokens at a time
    otherwise than for many, so logprobs of a prompt depend on how it is cut (0.26 nats were seen),
    and no tolerance tells that from a wrong cache.
    """
    if bits > WHOLE_BITS:
        return "float32"
    if bits > HALF_BITS:
        return "bfloat16"
    raise UsageError(
        f"--engine {NAME}: model: {model.name} has weights of {bits:.1f} bits; with such llama.cpp"
        " computes few tokens at a time otherwise than many, by more than a wrong cache may. Ask"
        " a server of it for likelihoods (score --likelihood --base-url URL), or give the model in"
        f" 32 bits (llama-quantize --allow-requantize {model.name} F32.gguf F32)"
    )
