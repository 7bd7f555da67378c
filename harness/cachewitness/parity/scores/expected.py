"""Expected failures of a score: arms that a list of the user's excuses, by the id
`score:arm@task` and the anomaly.
"""

from __future__ import annotations

import msgspec

from cachewitness.core.checkers.finding import Finding
from cachewitness.parity.scores.run import Outcome
from cachewitness.report.expected import Expectations


def with_expectations(outcome: Outcome, task: str, expected: Expectations) -> Outcome:
    """Return the outcome with the reasons of the arms whose every anomaly is excused, and with
    what is wrong with the list.
    """
    judged = []
    for arm in outcome.judged:
        findings = [
            Finding(anomaly=name, checker="score", sentence="; ".join(arm.reasons))
            for name in arm.anomalies
        ]
        _, entry = expected.weigh(f"score:{arm.arm}@{task}", findings) or (None, None)
        judged.append(msgspec.structs.replace(arm, expected=entry.reason if entry else ""))
    return msgspec.structs.replace(outcome, judged=judged, broken_list=expected.broken)
