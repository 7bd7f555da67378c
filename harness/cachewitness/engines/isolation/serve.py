"""What runs in the child of an engine that is written in Python: opens it, and carries out what the
harness asks.

    python -c "…; from cachewitness.engines.isolation.serve import main; main()"

An exception of the engine is an answer; a crash, an exit or a hang is for the harness to notice.
"""

from __future__ import annotations

import faulthandler
import os
from time import process_time
from typing import Any, BinaryIO

import msgspec

from cachewitness._util.errors import EngineBroken, EngineMissing, UsageError
from cachewitness._util.workers import die_with_the_parent
from cachewitness.core.engine_failure import describe_error, of_ours
from cachewitness.engines.entered import Seen, watch
from cachewitness.engines.isolation.messages import (
    ANSWERS,
    ASKED,
    PROTOCOL,
    VERSION,
    Answer,
    Apply,
    Close,
    Closed,
    Happened,
    Open,
    Opened,
    Question,
    Raised,
    Ready,
    Refused,
)
from cachewitness.engines.registry import parse


def main() -> None:
    """Answer until nobody asks any more."""
    faulthandler.enable()
    die_with_the_parent()
    watch()
    asked = os.fdopen(int(os.environ.pop(ASKED)), "rb")
    answers = os.fdopen(int(os.environ.pop(ANSWERS)), "wb")
    for pipe in (asked, answers):
        os.set_inheritable(pipe.fileno(), False)
    _Server(answers).run(asked)


class _Server:
    def __init__(self, answers: BinaryIO) -> None:
        self._answers = answers
        self._engine: Any = None
        self._opened = 0.0
        self._encoder = msgspec.json.Encoder()

    def run(self, asked: BinaryIO) -> None:
        own = os.getpid()
        decoder = msgspec.json.Decoder(Question)
        self._say(Ready(PROTOCOL, VERSION))
        for line in asked:
            answer = self._answer(decoder.decode(line))
            if os.getpid() != own:
                os._exit(
                    0
                )  # the engine forked and let the copy return: only one of the two answers
            self._say(answer)

    def _say(self, answer: Answer) -> None:
        try:
            line = self._encoder.encode(answer)
        except (TypeError, ValueError, RecursionError) as error:
            reason = f"what the engine returned is not made of events: {describe_error(error)}"
            line = self._encoder.encode(
                Refused(reason, bad_events=isinstance(answer, Happened | Opened))
            )
        self._answers.write(line + b"\n")
        self._answers.flush()

    def _answer(self, question: Question) -> Answer:
        try:
            match question:
                case Open():
                    return self._open(question)
                case Apply():
                    events = self._engine.apply(question.op)
                    inside = getattr(self._engine, "engine_seconds", None)
                    spent = None if inside is None else process_time() - self._opened
                    return Happened(events, inside, spent, _entered())
                case Close():
                    return self._close()
        except EngineBroken as broken:
            return Raised(describe_error(broken.__cause__ or broken))
        except UsageError as error:
            return Refused(str(error), isinstance(error, EngineMissing), getattr(error, "mend", ""))
        except Exception as error:
            return Raised(describe_error(error), of_ours(error, self._engine))

    def _open(self, question: Open) -> Answer:
        self._close()
        if watching := watch():
            watching.begin()
        self._engine = parse(question.engine).open(question.trace)
        self._opened = process_time()
        return Opened(self._engine.describe(), _entered())

    def _close(self) -> Answer:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        return Closed()


def _entered() -> list[Seen]:
    watching = watch()
    return watching.taken() if watching else []
