"""A fault in a source is planted where it says, whatever name the function is known by, and
taken out again.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.engines.source_patch import Patches
from cachewitness.engines.source_rewrite import original_source
from cachewitness_faults.vllm.modules import SCHEDULER


class Base:
    """What a scheduler is."""

    def schedule(self, tokens: int) -> int:
        """Return the tokens."""
        return tokens


class Scheduler(Base):
    """Stands in for vLLM's."""

    def schedule(self, tokens: int) -> int:
        """Return a third of the tokens, and one more."""
        tokens = max(
            # at least
            tokens // 3,
            0,
        )
        return super().schedule(tokens) + 1

    @classmethod
    def most(cls, tokens: int) -> int:
        """Return so many tokens, or ten."""
        if tokens > 10:
            tokens = 10
        return tokens


def boundary(tokens: int) -> int:
    """Return the last block's end."""
    return tokens // 4 * 4


imported = boundary


@pytest.fixture
def patches(monkeypatch: pytest.MonkeyPatch) -> Patches:
    module = ModuleType(f"vllm.{SCHEDULER}")
    module.Scheduler = Scheduler  # type: ignore[attr-defined]
    module.boundary = boundary  # type: ignore[attr-defined]
    parts = module.__name__.split(".")
    for length in range(1, len(parts)):
        name = ".".join(parts[:length])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Patches()


def test_a_piece_of_source_is_replaced_and_put_back(patches: Patches) -> None:
    """Blanks, line ends and comments need not agree, and the method still finds its base class."""
    bound = Scheduler().schedule
    patches.text(SCHEDULER, "Scheduler", "schedule", "max( tokens // 3, 0, )", "tokens")
    assert Scheduler().schedule(9) == bound(9) == 10
    patches.undo()
    assert Scheduler().schedule(9) == bound(9) == 4


def test_a_second_piece_of_a_function_is_replaced_in_what_the_first_left(patches: Patches) -> None:
    patches.text(SCHEDULER, "Scheduler", "schedule", "tokens // 3", "tokens // 2")
    patches.text(
        SCHEDULER,
        "Scheduler",
        "schedule",
        "super().schedule(tokens) + 1",
        "super().schedule(tokens) + 2",
    )
    assert Scheduler().schedule(8) == 6
    patches.undo()
    assert Scheduler().schedule(8) == 3


def test_a_function_is_changed_for_whoever_has_imported_it(patches: Patches) -> None:
    patches.text(SCHEDULER, "", "boundary", "tokens // 4 * 4", "tokens")
    assert imported(7) == 7
    patches.undo()
    assert imported(7) == 4


def test_lines_of_a_block_are_indented_like_the_one_that_they_replace(patches: Patches) -> None:
    patches.text(
        SCHEDULER,
        "Scheduler",
        "most",
        "if tokens > 10: tokens = 10",
        "if tokens > 5:\n    tokens = 5\ntokens += 1",
    )
    assert Scheduler.most(9) == 6
    patches.undo()
    assert Scheduler.most(11) == 10


def test_a_traceback_shows_the_file_and_the_line_of_the_source(patches: Patches) -> None:
    patches.text(SCHEDULER, "", "boundary", "tokens // 4 * 4", "tokens // 0")
    with pytest.raises(ZeroDivisionError) as raised:
        boundary(1)
    patches.undo()
    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    first = boundary.__code__.co_firstlineno
    assert (frame.filename, frame.name) == (__file__, "boundary")
    assert frame.lineno == first + len(original_source(boundary).splitlines()) - 1


@pytest.mark.parametrize(
    ("name", "old", "times"), [("schedule", "tokens // 4", 0), ("schedule", "tokens", 5)]
)
def test_a_piece_that_is_not_there_once_is_refused(
    patches: Patches, name: str, old: str, times: int
) -> None:
    """So a release that was changed there is not said to have the fault."""
    with pytest.raises(
        UsageError, match=rf"Scheduler\.{name} of this vllm has {times} times '{old}'"
    ):
        patches.text(SCHEDULER, "Scheduler", name, old, "0")


def test_a_function_that_is_not_there_is_refused(patches: Patches) -> None:
    with pytest.raises(UsageError, match="Scheduler of this vllm has no nothing"):
        patches.text(SCHEDULER, "Scheduler", "nothing", "tokens", "0")
