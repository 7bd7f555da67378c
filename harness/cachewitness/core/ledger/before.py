"""What can be known of an event only before it happens: the event itself destroys the answer.

`Ledger.before` returns one of these views. It refuses an event that the ledger is already past, so
nobody asks too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachewitness.core.events import Write
from cachewitness.core.ledger.contents import Contents
from cachewitness.core.ledger.records import Content, Key, Span


@dataclass(frozen=True, slots=True)
class BeforeRead:
    """`invalid` are the indices into the read's pages whose content is not what it needs, or
    that the reader does not hold.
    """

    invalid: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class BeforeWrite:
    """Says what the write destroys. `nodes` are the prefixes of the run that writes."""

    event: Write
    nodes: list[int]
    contents: Contents

    def destroyed(self, content: Content, start: int, stop: int) -> list[Span]:
        """Return what of a page's content the write of tokens [start, stop) into it ends."""
        return self.contents.destroyed(content, self.event, self.nodes, start, stop)


@dataclass(frozen=True, slots=True)
class BeforePublish:
    """`late`: the step that wrote the content is over, so the key is committed at once;
    `unbacked`: over other content.
    """

    late: bool
    unbacked: bool


@dataclass(frozen=True, slots=True)
class BeforeHit:
    """`invalidated` are the keys under the hit's pages that were withdrawn, reset or outdated,
    where no usable key is left.
    """

    invalidated: Sequence[Key] = ()


@dataclass(frozen=True, slots=True)
class BeforeStepEnd:
    """`pending` are the keys that the end of the step decides, `unbacked` those that it commits
    without their content.

    `withdrawn` are those of requests that were taken out of the step, and of whose content nothing
    came by other ways.
    """

    pending: Sequence[Key] = ()
    unbacked: Sequence[Key] = ()
    withdrawn: Sequence[Key] = ()


View = BeforeRead | BeforeWrite | BeforePublish | BeforeHit | BeforeStepEnd

SOUND_READ = BeforeRead()
IN_ITS_STEP = BeforePublish(late=False, unbacked=False)
SOUND_HIT = BeforeHit()
NO_KEYS = BeforeStepEnd()
