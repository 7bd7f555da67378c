"""Whether what an engine declares of its patience leaves anything to be judged."""

from __future__ import annotations

from cachewitness.core.events import Header

PATIENCE, SPARE = 16, 8
"""As many `progress_steps` as any cache here needs, and as many `reserved_pages` in a small pool.
"""


class Generous:
    """Whether an engine that declares more than `PATIENCE`, or reserves more than half a pool,
    could be found to be stuck.

    A request that is asked for, with room, in more steps than are declared would be found if it
    never ran. One that would be by `PATIENCE` and half a pool alone was kept from being judged by
    what the engine declares.
    """

    def __init__(self, header: Header) -> None:
        rules = header.rules
        least = min((pool.pages for pool in header.pools if pool.tier == "local"), default=0)
        self.limit = rules.progress_steps
        self.patience = min(rules.progress_steps, PATIENCE)
        self.spare = min(rules.reserved_pages, max(least // 2, SPARE))
        declarations = (
            [f"progress_steps {rules.progress_steps}"] if rules.progress_steps > PATIENCE else []
        )
        declarations += (
            ["reserved_pages of more than half a pool"] if rules.reserved_pages > self.spare else []
        )
        self.declared = " and ".join(declarations)
        self.judged = 0
        self.spared: set[str] = set()
        """Requests that were kept from being judged."""
        self._asked: dict[str, tuple[int, int]] = {}
        """In how many steps each request was asked for: with room beside `spare` pages, and beside
        all that are reserved."""

    def ask(self, r: str, *, roomy: bool) -> None:
        """Take note of a step in which a request was asked for, with room; `roomy`: beside all
        that is reserved as well.
        """
        few, many = self._asked.get(r, (0, 0))
        self._asked[r] = few, many = few + 1, many + roomy
        if many > self.limit:
            self.judged += many == self.limit + 1
            self.spared.discard(r)
        elif few > self.patience:
            self.spared.add(r)

    def begin_anew(self) -> None:
        """Forget how often anybody was asked for, where no wait goes on."""
        self._asked.clear()
