"""What a checker says: findings, and how often it had something to judge."""

from __future__ import annotations

import msgspec

from cachewitness.core.ledger.records import GIVEN_BACK, NOT_RUN, OFFERED_AGAIN, RUN_PAST

EARLY_COPY = "early-copy"
"""The cause of what is wrong with a page that was copied, in front of a step, from one keyed for
what that step writes."""
OFF_GRID = "off-grid"
"""The cause of a state that is kept although no hit can end there."""
LEFT_WINDOW = "left-window"
"""The cause of an event for routers that tells of a block with the tokens of a request whose window
the block has left."""
DROPPED_TOKENS = "dropped-tokens"
"""The cause of an event for routers that has no tokens of a block which was stored with them on the
same medium, and removed since."""
OPEN_CHUNK = "open-chunk"
"""The cause of a read in front of where a request was resumed, inside a chunk of attention that was
open there: the hit brought nothing of that chunk."""
ROUNDED_UP = "rounded-up"
"""The cause of a state that is loaded from another tier for a hit that ends inside its block, and
with a block of full attention: it is that of the end of its block."""
FAILED_LOAD = "failed-load"
"""The cause of nobody's being run: a load from another tier had failed, and nobody ran since. Also
of a window with a hole: it is computed again behind such a load, over what the hit did not load."""
HELD_BY_WAITING = "held-by-waiting"
"""The cause of nobody's being run: what others hold who wait as well leaves one of those who wait
no room, and a queue in order stands still behind it."""
KEPT_HASH = "kept-hash"
"""The cause of what is written over, or read, under the key of a block that the last token of a
session's answer had completed: the session went on without that token."""
BEYOND_ANSWER = "beyond-answer"
"""The cause of a session's state that has seen the last token of its answer, without which the
session goes on: a step in flight computed that token when the answer was over."""
INSIDE_BLOCK = "inside-block"
"""The cause of a prefix that is not kept: the request that computed it had been resumed inside a
block of attention."""
CAUSES = (
    *(EARLY_COPY, OFF_GRID, LEFT_WINDOW, DROPPED_TOKENS, OPEN_CHUNK),
    *(ROUNDED_UP, GIVEN_BACK, OFFERED_AGAIN, FAILED_LOAD, HELD_BY_WAITING, NOT_RUN, RUN_PAST),
    *(KEPT_HASH, INSIDE_BLOCK, BEYOND_ANSWER),
)


class Finding(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One contradiction: which anomaly, seen by which checker, at which event of the history and
    operation of the trace.

    `line` is what happened in one line of the field's words, as in `request r3 read page 5 as
    tokens [0,16); the page holds [12,16)`; `sentence` is the contradiction in full. Every checker
    of this package gives both. `line` may be empty in checkers of other packages and in findings
    that were stored before there was one.

    `cause` is one word for what is behind it where the checker can tell, such as the fact in which
    a divergence lies. `output` is the end of what an engine in a process of its own had printed
    when it failed. `owed` is how many tokens `r` could have hit, where it hits fewer.
    """

    anomaly: str
    sentence: str
    line: str = ""
    checker: str = ""
    cause: str = ""
    r: str = ""
    seq: int = -1
    op: int = -1
    output: str = ""
    owed: int = 0

    def alike(self, other: Finding) -> bool:
        """Whether a smaller trace that is found by `other` fails as this one does: these causes
        stand for no other.
        """
        same = all((self.cause == cause) == (other.cause == cause) for cause in CAUSES)
        return self.anomaly == other.anomaly and same


class Measured(msgspec.Struct, kw_only=True):
    """What comparing one quantity came to, of everything computed in one dtype.

    `what` is "logits" or the part of a layer type's state. `floor`, `tolerance` and `ceiling` are
    the largest that applied and `least` the smallest tolerance, each model having its own;
    `largest` is the largest difference, and `share` the largest share of its own tolerance that a
    difference came to. Of `rows` compared, `restored_rows` were of requests that had hit something;
    `beyond` differed by more than the tolerance, `nan` of them as NaN and `infinite` as infinity.
    Of `asked` tokens of requests that were looked up, `restored` were not computed. Of `repeats`,
    requests whose prompt is that of the last one and which nobody else was beside, so many had
    something restored (`repeats_restored`).
    """

    dtype: str
    what: str = "logits"
    floor: float = 0.0
    tolerance: float = 0.0
    least: float = 0.0
    ceiling: float = 0.0
    largest: float = 0.0
    share: float = 0.0
    rows: int = 0
    restored_rows: int = 0
    beyond: int = 0
    nan: int = 0
    infinite: int = 0
    asked: int = 0
    restored: int = 0
    repeats: int = 0
    repeats_restored: int = 0

    def add(self, other: Measured) -> None:
        """Add another run's of the same quantity and dtype: counts add up, of differences the
        largest stays.
        """
        least = min(self.least or other.least, other.least or self.least)
        for field in self.__struct_fields__[2:]:
            mine = getattr(self, field)
            its = getattr(other, field)
            setattr(self, field, mine + its if isinstance(mine, int) else max(mine, its))
        self.least = least


def merge_measured(measured: list[Measured]) -> list[Measured]:
    """Return one entry for each dtype and quantity, in the order in which they were met."""
    merged: dict[tuple[str, str], Measured] = {}
    for entry in measured:
        merged.setdefault(
            (entry.dtype, entry.what), Measured(dtype=entry.dtype, what=entry.what)
        ).add(entry)
    return list(merged.values())


class Reuse(msgspec.Struct, kw_only=True):
    """What look-ups came to, in tokens of the requests that were looked up: `got` is where they
    resumed.

    `owed` is the longest hit that the engine's keys allowed at the time, and `reach` the longest
    had no page and no key ever been given up: what had been computed before, under the same
    identity. What lies between the two was lost for want of a key. It was `evicted`, ended with a
    `reset` or new weights, was `thinned` out by retention as the engine declares it, or never had
    one. That is `aborted` if nobody else computed it than requests which did not end as intended,
    of which nothing is owed, and `unkept` otherwise: whether it was to have one is what `keys` and
    `content-floor` judge.
    """

    got: int = 0
    owed: int = 0
    reach: int = 0
    evicted: int = 0
    reset: int = 0
    thinned: int = 0
    unkept: int = 0
    aborted: int = 0

    def add(self, other: Reuse) -> None:
        """Add another run's."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class Tally(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a checker did in a run: how often it had something to judge, what it found, why it could
    not judge: it `crashed`, which is the harness's mistake, or says what is left `open`, which is
    not.

    `missing` are the events that it looks at and that never came, if it had nothing to judge.
    `excused` counts, by declaration of the engine, on how many occasions the rule was not judged
    because of it; `bounds` says of some, which are beyond what caches need, on how many it was
    judged all the same. `denied` is why the engine declares the rule not applicable, where it
    applies by all else that the engine declares; `denial_listed` says whether the list of expected
    failures lets it, by the name `rule`.
    """

    checker: str
    opportunities: int = 0
    findings: int = 0
    acceptable: int = 0
    crashed: str = ""
    open: str = ""
    not_applicable: str = ""
    measured: list[Measured] = []
    missing: list[str] = []
    excused: dict[str, int] = {}
    bounds: dict[str, int] = {}
    reuse: Reuse | None = None
    denied: str = ""
    denial_listed: bool = False
    rule: str = ""

    @property
    def unjudged(self) -> str:
        """What kept it from judging all that it would have, in words; empty if nothing did."""
        return f"crashed: {self.crashed}" if self.crashed else self.open


def idle(tally: Tally) -> str:
    """Say of a checker without opportunities what it lacked."""
    if tally.excused:
        return f"had nothing to judge: the engine declares {', '.join(sorted(tally.excused))}"
    lacked = " or ".join(name if " " in name else f"`{name}`" for name in tally.missing)
    return "had nothing to judge" + (f": it looks at {lacked}, and none came" if lacked else "")


def denied(tallies: list[Tally]) -> list[str]:
    """Say which rules that apply the engine denies, where no list of expected failures lets it."""
    return [
        f"rule {tally.rule} applies, and the engine declares that it does not: {tally.denied}"
        for tally in tallies
        if tally.denied and not tally.denial_listed
    ]


def unjudged(tallies: list[Tally]) -> list[str]:
    """Say which rules that apply had nothing to judge, or had not once what a declaration of the
    engine leaves to be judged.
    """
    lines = denied(tallies)
    for tally in tallies:
        if tally.not_applicable or tally.unjudged:
            continue
        if not tally.opportunities:
            lines.append(f"checker {tally.checker} {idle(tally)}")
        lines += [
            f"checker {tally.checker} could not judge once, as the engine declares {declaration}:"
            f" with less it could have, {tally.excused[declaration]:,} times"
            for declaration, judged in tally.bounds.items()
            if not judged and declaration in tally.excused
        ]
    return lines


def denials(tallies: list[Tally]) -> str:
    """Name in one line the rules that apply, and that the engine declares not applicable; empty
    if there is none.
    """
    rules = [f"{tally.rule} ({tally.denied})" for tally in tallies if tally.denied]
    return f"not judged at all, as the engine declares: {', '.join(rules)}" if rules else ""


def reused(tallies: list[Tally]) -> str:
    """Say in one line how many tokens were hit, owed, and lost by what; empty if nothing could
    have been hit.
    """
    total = Reuse()
    for tally in tallies:
        total.add(tally.reuse or Reuse())
    if not total.reach:
        return ""
    lost = [
        f"{tokens:,} were {how}"
        for tokens, how in (
            (total.evicted, "evicted"),
            (total.reset, "reset"),
            (total.thinned, "thinned out"),
            (total.unkept, "never kept"),
            (total.aborted, "of aborted requests alone"),
        )
        if tokens
    ]
    return (
        f"hits: {total.got:,} tokens got, {total.owed:,} owed by what was kept; {total.reach:,} had"
        f" been computed before{', of which ' * bool(lost)}{', '.join(lost)}"
    )


def excused(tallies: list[Tally]) -> str:
    """Say in one line what the engine's declarations kept from being judged, and how often each;
    empty if they kept nothing.
    """
    counts = [
        f"{tally.checker} {count:,} times by {declaration} (judged {tally.opportunities:,} times)"
        for tally in tallies
        for declaration, count in sorted(tally.excused.items())
    ]
    return f"not judged, as the engine declares: {', '.join(counts)}" if counts else ""


def merge_tallies(tallies: list[Tally]) -> list[Tally]:
    """Add up the tallies of several runs, by checker; not applicable only if it never applied."""
    merged: dict[str, Tally] = {}
    for tally in tallies:
        fresh = Tally(
            checker=tally.checker, not_applicable=tally.not_applicable, missing=tally.missing
        )
        into = merged.setdefault(tally.checker, fresh)
        into.missing = [name for name in into.missing if name in tally.missing]
        into.opportunities += tally.opportunities
        into.findings += tally.findings
        into.acceptable += tally.acceptable
        into.crashed = into.crashed or tally.crashed
        into.open = into.open or tally.open
        if not tally.not_applicable:
            into.not_applicable = ""
        if tally.denied:
            into.denial_listed = tally.denial_listed and (into.denial_listed or not into.denied)
            into.denied = into.denied or tally.denied
            into.rule = tally.rule
        for declaration, count in tally.excused.items():
            into.excused[declaration] = into.excused.get(declaration, 0) + count
        for declaration, count in tally.bounds.items():
            into.bounds[declaration] = into.bounds.get(declaration, 0) + count
        if tally.reuse is not None:
            into.reuse = into.reuse or Reuse()
            into.reuse.add(tally.reuse)
        into.measured = merge_measured([*into.measured, *tally.measured])
    return list(merged.values())
