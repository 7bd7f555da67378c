"""An engine that did not carry out an operation: a verdict on the engine, never an error of the harness."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Lost = Literal["died", "hung"]


class EngineFailure(Exception):
    """What an engine did instead of answering.

    `anomaly` is how a finding calls it. The message completes the sentence "let the engine carry the operation out; however it
    …". `output` is the end of what the engine's process printed, if it has a process of its own.
    """

    def __init__(self, anomaly: Lost, message: str, output: str = "") -> None:
        super().__init__(message)
        self.anomaly, self.output = anomaly, output


def told(error: BaseException) -> str:
    """Return an exception in one line: its class, the first line of its message, and the file and line that raised it."""
    lines = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{said} ({Path(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno})" if traceback else said
