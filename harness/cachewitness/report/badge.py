"""A run as a badge: the document that shields.io reads at an address of its user's (its endpoint
badge).
"""

from __future__ import annotations

from cachewitness._util.indented import indented
from cachewitness.report.summary import Report
from cachewitness.report.terminal import MEANINGS

COLOURS = {0: "brightgreen", 1: "red"}
"""By exit code; every other one is neither a pass nor a verdict on the engine, and is orange."""


def render(report: Report) -> bytes:
    """Return the document: the verdict and how many operations it rests on."""
    code = report.exit_code
    operations = sum(suite.activity.operations for suite in report.suites)
    document = {
        "schemaVersion": 1,
        "label": "cachewitness",
        "message": f"{MEANINGS[code][0].lower()}, {operations:,} operations",
        "color": COLOURS.get(code, "orange"),
        "isError": code not in COLOURS,
    }
    return indented(document, 1)
