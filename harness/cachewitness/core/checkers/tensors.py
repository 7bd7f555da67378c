"""Compares two detectors, the ledger and the tensors: each must find what the other finds.

An engine that computes reports how its logits compare with those of the model's definition
(`compare`). If they differ although every read of the request was right, then the device computes
something else than the model: `silent-divergence`, a fault of the engine. If the ledger calls a
read wrong and the logits of the same step are right, then either the wrong page held equal content,
in one of the ways listed here, or the ledger is wrong: `unfelt-fault`, a failure of the harness.

A wrong read leaves the logits unchanged if it is of one of these classes:

* same-content: a page of the same tokens, media, adapter and weights; only the salt differs;
* not-held: the right content in a page that the request no longer holds and that nobody has
  overwritten;
* freed-in-flight: a page that the request gave back while the step was in flight. Steps are carried
  out in the order in which they were scheduled, so the page's next holder has not written it yet;
* exchanged: blocks of full attention in each other's columns. Keys carry their position, and
  attention sums over a set.
"""

from __future__ import annotations

from typing import Any

from cachewitness.core.checkers.divergence import divergence, sighted
from cachewitness.core.checkers.finding import Finding, Measured, merge_measured
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.events import Compare, Group, Header, Hit, Read, Release
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.reads import span_of
from cachewitness.core.ledger.records import NOTHING, PageRecord
from cachewitness.core.trace_format import COMPARE

RESOLUTION = 1e-6
"""A coarser tolerance, in logits, may hide what a wrong read does; the ledger is then not accused.
"""
SILENT, UNFELT = "silent-divergence", "unfelt-fault"

GivenBack = dict[tuple[int, int, str], set[int]]
"""Per pool, page and holder: the steps that were in flight when the holder gave the page back."""


class TensorsAgree(Checker):
    """Logits differ from those of the definition if, and only if, the ledger knows why."""

    name = "tensors"
    summary = (
        "logits are those of the model's definition, and differ where the ledger finds a wrong read"
    )
    anomalies = (SILENT, UNFELT)

    def __init__(self) -> None:
        super().__init__()
        self._asked = self._restored = 0
        self._felt: dict[tuple[int, str], str] = {}
        self._given_back: GivenBack = {}
        self._reported: set[str] = set()

    def not_applicable(self, header: Header) -> str:
        own = "" if COMPARE in header.capabilities else "the engine computes nothing"
        return super().not_applicable(header) or own

    def handlers(self) -> dict[type, Handler]:
        return {Compare: self.on_compare, Hit: self.on_hit, Release: self.on_release}

    def on_release(self, ledger: Ledger, event: Release) -> Found:
        """Remember which steps were in flight when pages were given back."""
        if ledger.open_steps:
            steps = set(ledger.open_steps)
            self._given_back |= {(event.pool, page, event.holder): steps for page in event.pages}
        return None

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Count what is restored."""
        self._restored += event.resume
        self._asked += len(ledger.requests[event.r].tokens)
        return None

    def note_invalid_read(self, ledger: Ledger, event: Read) -> None:
        """Remember that the step's logits must show it, unless it is of a class that they cannot
        show.
        """
        if not unfelt(ledger, event, self._given_back):
            self._felt.setdefault(
                (event.step, event.r), f"group {event.group} ({ledger.groups[event.group].kind})"
            )

    def close(self, ledger: Ledger) -> Found:
        """Complete what was measured by what was restored."""
        for measured in self.measured[:1]:
            measured.asked = self._asked
            measured.restored = self._restored
        return None

    def on_compare(self, ledger: Ledger, event: Compare) -> Found:
        request = ledger.requests[event.r]
        where = self._felt.pop((event.step, event.r), "")
        restored = request.hit is not None and request.hit.resume > 0
        rows = event.stop - event.start
        self.opportunities += rows
        self.measured = merge_measured([*self.measured, measured(event, rows if restored else 0)])
        sighted(event)
        if event.r in self._reported:
            return None
        if event.beyond and not request.tainted:
            self._reported.add(event.r)
            return (_silent(event, request.hit.resume if request.hit else 0),)
        if where and not event.beyond and event.tolerance <= RESOLUTION:
            self._reported.add(event.r)
            return (_unfelt(event, where),)
        return None


def unfelt(ledger: Ledger, read: Read, given_back: GivenBack) -> str:
    """Return the class by which a wrong read leaves the numbers as they are; empty if they must
    change.
    """
    invalid = ledger.before(read).invalid
    group = ledger.groups[read.group]
    bad = [
        i
        for i in invalid
        if read.step not in given_back.get((read.pool, read.pages[i], read.r), ())
    ]
    # First, because in flight even a page that was given to another holder still has its old
    # content: steps are carried out in the order in which they were scheduled.
    if not bad:
        return "freed-in-flight"
    records = [ledger.record(read.group, read.pages[index]) for index in bad]
    if any(
        record is None or record.node == NOTHING or record.group != read.group for record in records
    ):
        return ""
    # One column without content, or with that of another group, changes the numbers, whatever the
    # others hold.
    spans = [span_of(group, read, index) for index in bad]
    held = [record for record in records if record is not None]
    if all(
        _has(ledger, record, read, span, group) for record, span in zip(held, spans, strict=True)
    ):
        return (
            "not-held" if all(read.r not in record.holders for record in held) else "same-content"
        )
    # Only full attention sums over a set; a window or a state depends on the place.
    exchanged = all(
        any(_has(ledger, record, read, span, group) for record in held) for span in spans
    )
    return "exchanged" if group.kind == "full" and exchanged else ""


def _has(
    ledger: Ledger, record: PageRecord, read: Read, span: tuple[int, int], group: Group
) -> bool:
    """Whether a page's newest run covers a span of what the request's own prefix computes to,
    salts aside.
    """
    start, stop = span
    nodes = ledger.requests.prefixes_of_run(read)
    if group.kind == "recurrent":
        return (
            record.state
            and record.stop == stop
            and _computes_alike(ledger, record.node, nodes[stop])
        )
    if record.state or not record.start <= start <= stop <= record.stop:
        return False
    return _computes_alike(ledger, ledger.trie.ancestor(record.node, stop), nodes[stop])


def _computes_alike(ledger: Ledger, node: int, other: int) -> bool:
    """Whether two prefixes are the same tokens and media, under the same weights and adapter."""
    trie = ledger.trie
    if trie.depth[node] != trie.depth[other]:
        return False
    while trie.depth[node] > 0:
        if trie.symbol[node] != trie.symbol[other]:
            return False
        node, other = trie.parent[node], trie.parent[other]
    roots = {trie.symbol[node], trie.symbol[other]}
    identities: list[Any] = [mark for mark, symbol in trie.marks() if symbol in roots]
    return (
        len({(weights, adapter, version) for _, (weights, _, adapter, version, _) in identities})
        == 1
    )


def measured(event: Compare, restored_rows: int) -> Measured:
    """Return what one comparison adds to those of its dtype."""
    return Measured(
        dtype=event.dtype,
        floor=event.floor,
        tolerance=event.tolerance,
        least=event.tolerance,
        ceiling=event.ceiling,
        largest=event.largest,
        share=event.largest / event.tolerance if event.tolerance else 0.0,
        rows=event.stop - event.start,
        restored_rows=restored_rows,
        beyond=event.beyond,
        nan=event.nan,
        infinite=event.infinite,
    )


def _silent(event: Compare, resume: int) -> Finding:
    how = f"after a hit of {resume} tokens" if resume else "without a hit"
    rows = event.stop - event.start
    sentence = (
        f"Let {event.r} compute tokens [{event.start}, {event.stop}) in step {event.step}, {how}."
        f" Its block tables name the right pages wherever it reads; however {divergence(event)}: a"
        " contradiction."
    )
    line = (
        f"request {event.r} read the right pages; {event.beyond} of {rows} rows of its logits are"
        f" wrong, first at {event.at}"
    )
    return Finding(anomaly=SILENT, r=event.r, sentence=sentence, line=line)


def _unfelt(event: Compare, where: str) -> Finding:
    sentence = (
        f"Let {event.r} compute tokens [{event.start}, {event.stop}) in step {event.step}. "
        f"The ledger says that what it read of {where} was wrong, in a way that changes results; "
        "however its logits are those of the definition within the tolerance "
        f"{event.tolerance:.1e} (largest difference {event.largest:.1e}): a contradiction."
    )
    line = (
        f"request {event.r} read wrong pages of {where} in step {event.step}; its logits are right"
    )
    return Finding(anomaly=UNFELT, r=event.r, sentence=sentence, line=line)
