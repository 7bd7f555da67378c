"""How far a rule lies below the command: who reads a traceback, or steps through one, passes every
frame between them.
"""

from __future__ import annotations

from traceback import walk_stack

import pytest

from cachewitness._util import data
from cachewitness.cli import invoke
from cachewitness.core.checkers.ownership import Ownership
from cachewitness.core.checkers.protocol import Found
from cachewitness.core.events import Submitted
from cachewitness.core.ledger.ledger import Ledger

FRAMES_MAX = 14
FAULT = "reference:mutant=image-left-out"
TRACE = data.fault_traces() / "image-left-out.jsonl"


def _frames(command: str) -> list[str]:
    """Return the functions of the package that are under way, up to that of a command."""
    names = list[str]()
    for frame, _ in walk_stack(None):
        module = frame.f_globals["__name__"]
        if module.startswith("cachewitness."):
            names.append(frame.f_code.co_qualname)
            if (module, names[-1]) == (f"cachewitness.cli.{command}", command):
                return names
    raise AssertionError(f"no command {command} in {names}")


@pytest.mark.parametrize(
    "command",
    [
        "run --jobs 1 --layout full --suite random --only random:random-*0@full",
        f"run --jobs 1 --layout full --suite differential --only *-*0@full --engine {FAULT}",
        "fuzz --jobs 1 --layout full --operations 20",
        f"replay {TRACE} --engine {FAULT} --differential",
    ],
)
def test_from_a_command_to_a_rule_there_are_few_frames(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted with both ends."""
    words = command.split()
    deepest = list[str]()
    rule = Ownership.on_submitted

    def counted(self: Ownership, ledger: Ledger, event: Submitted) -> Found:
        deepest[:] = max(deepest, [rule.__qualname__, *_frames(words[0])], key=len)
        return rule(self, ledger, event)

    monkeypatch.setattr(Ownership, "on_submitted", counted)
    invoke([*words, "--quiet"] if words[0] != "fuzz" else words)
    assert 0 < len(deepest) <= FRAMES_MAX, deepest
