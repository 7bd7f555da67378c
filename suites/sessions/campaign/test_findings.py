"""Which findings are one: what the signature of a minimal trace takes in, and what it leaves
out.
"""

from __future__ import annotations

import msgspec

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.trace_format import (
    GroupSpec,
    Layout,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.sessions.campaign.findings import kinds_of, normalised, signature

FINDING = Finding(anomaly="stale-hit", checker="safety-law", sentence="…", seq=3, op=2)


def trace(
    *ops: object, kinds: tuple[str, ...] = ("full",), level: str = "manager", pages: int = 9
) -> Trace:
    groups = [GroupSpec(kind=kind, block_size=4 + n) for n, kind in enumerate(kinds)]  # type: ignore[arg-type]
    header = TraceHeader(name="t", layout=Layout("l", groups), pages=pages, level=level)  # type: ignore[arg-type]
    return Trace(header, list(ops))  # type: ignore[arg-type]


BASE = trace(Submit("r1", "A:9"), Step([("r1", 9)]), Submit("r2", "A:9"), Step([("r2", 1)]))


def test_names_lengths_and_sizes_do_not_matter() -> None:
    other = trace(
        *(Submit("r7", "C:3 B:30"), Step([("r7", 33)])),
        *(Submit("x", "C:4"), Step([("x", 2)]), Step([("x", 2)])),
        pages=30,
    )
    elsewhere = msgspec.structs.replace(FINDING, sentence="other", seq=7, op=1, r="x")
    assert signature(elsewhere, other) == signature(FINDING, BASE)


def test_what_happens_and_to_whom_matters() -> None:
    others = [
        trace(Submit("r1", "A:9"), Step([("r1", 9)]), Submit("r2", "A:9"), Step([("r1", 1)])),
        trace(
            Submit("r1", "A:9", salt="x"),
            Step([("r1", 9)]),
            Submit("r2", "A:9", salt="y"),
            Step([("r2", 1)]),
        ),
        trace(Submit("r1", "A:9"), Step([("r1", 9)]), Preempt("r1"), Step([("r1", 1)])),
        trace(Submit("r1", "A:9"), Step([("r1", 9)]), Reset(), Step([("r1", 1)])),
        trace(*BASE.ops, kinds=("full", "sliding")),
        trace(*BASE.ops, level="scheduler"),
    ]
    signatures = {signature(FINDING, one) for one in (BASE, *others)}
    anomalies = {
        signature(msgspec.structs.replace(FINDING, **{field: "x"}), BASE)
        for field in ("anomaly", "checker")
    }
    assert len(signatures) == 1 + len(others) and len(anomalies) == 2 and not anomalies & signatures


def test_an_identity_that_all_requests_share_is_as_none() -> None:
    shared = trace(
        *(
            msgspec.structs.replace(op, salt="s") if isinstance(op, Submit) else op
            for op in BASE.ops
        )
    )
    assert normalised(shared) == normalised(BASE)


def test_kinds_of_groups_are_a_set() -> None:
    assert kinds_of(trace(kinds=("sliding", "full", "sliding")).header) == ["full", "sliding"]
