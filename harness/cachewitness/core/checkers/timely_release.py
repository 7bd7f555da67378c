"""Pages that nobody will read again: a window moves on, a recurrent state is followed by the next,
and what lies behind is given back.

Every answer is right with such pages, and the pool has less room: requests are preempted, and
prefixes evicted, that need not be. What a step in flight reads stays until it has ended. Whether an
engine gives pages back while their request runs is its own affair, so it declares it
(`Rules.frees_behind`).
"""

from __future__ import annotations

from cachewitness.core.checkers.finding import BEYOND_ANSWER, Finding
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.wording import count, named, page_list
from cachewitness.core.events import Group, Header, Pool, Run, StepBegin
from cachewitness.core.ledger.ledger import Ledger

LATE = "late-release"


class TimelyRelease(Checker):
    """A block table names no page that neither the run that begins nor one in flight reads."""

    name = "timely-release"
    summary = (
        "a step begins with no page of a window or a recurrent state that no run reads any more,"
        " neither of that step nor of one in flight"
    )
    anomalies = (LATE,)
    lacks = "a run behind whose window, or whose state, there is a block"

    def __init__(self) -> None:
        super().__init__()
        self._groups: list[tuple[Group, Pool]] = []

    def not_applicable(self, header: Header) -> str:
        pools = {pool.id: pool for pool in header.pools}
        self._groups = [
            (group, pools[group.pool])
            for group in header.local_groups()
            if group.kind in ("sliding", "recurrent")
        ]
        if own := super().not_applicable(header):
            return own
        if not header.rules.frees_behind:
            return (
                "the engine does not declare that it gives pages back while their request runs"
                " (`frees_behind` of its rules)"
            )
        return "" if self._groups else "there is no window and no recurrent state"

    def handlers(self) -> dict[type, Handler]:
        return {StepBegin: self.on_step_begin}

    def on_step_begin(self, ledger: Ledger, event: StepBegin) -> Found:
        """Judge the tables of the runs that begin."""
        found: list[Finding] = []
        for run in event.runs:
            start, since = self._earliest(ledger, event, run)
            for group, pool in self._groups:
                first = _first_read(group, start)
                if not first:
                    continue
                self.opportunities += 1
                table = run.tables[group.id]
                spent = [page for page in table[:first] if page >= 0 and page not in pool.null]
                if spent:
                    finding = _late(run, group, spent, first, since)
                    counted_twice = _first_read(group, start - _dropped(ledger, run))
                    if all(page < 0 or page in pool.null for page in table[:counted_twice]):
                        finding.cause = BEYOND_ANSWER
                    found.append(finding)
        return found

    def _earliest(self, ledger: Ledger, event: StepBegin, run: Run) -> tuple[int, int]:
        """Return where the earliest run of a request begins that has not ended, and its step.

        What ended runs computed bounds it: a run that was begun behind drafts starts further back
        when some of them fall.
        """
        begun = [
            (other.start, step.step)
            for step in ledger.requests.open_steps.values()
            for other in step.runs
            if other.r == run.r
        ]
        start, since = min([*begun, (run.start, event.step)])
        return min(start, ledger.requests[run.r].computed), since


def _dropped(ledger: Ledger, run: Run) -> int:
    """Return how many tokens steps in flight still compute of the answer behind which a session
    went on.
    """
    requests = ledger.requests
    if not requests[run.r].went_on:
        return 0
    return sum(
        other.stop - other.start
        for step, r in requests.ended_in_flight
        if r == run.r
        for other in requests.open_steps[step].runs
        if other.r == r
    )


def _first_read(group: Group, start: int) -> int:
    """Return the first column that a run from `start` on reads: the window of its first token, or
    the state in front of it.
    """
    behind = start - 1 if group.kind == "recurrent" else start + 1 - group.window
    return max(behind, 0) // group.block_size


def _late(run: Run, group: Group, spent: list[int], first: int, since: int) -> Finding:
    what = "the state" if group.kind == "recurrent" else f"the window of {group.window} tokens"
    kept = first * group.block_size
    sentence = (
        f"Let {run.r} run from token {run.start} on. No run of it that is to come, or is in flight"
        f" since step {since}, reads {what} in front of token {kept} in group {group.id}. However"
        f" its block table still names {page_list(spent)} there: a contradiction."
    )
    line = (
        f"{named(run.r)} holds {count(len(spent), 'page')} of group {group.id} in front of token"
        f" {kept}, which it does not read any more"
    )
    return Finding(anomaly=LATE, r=run.r, sentence=sentence, line=line)
