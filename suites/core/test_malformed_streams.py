"""Streams of events with one random mistake each, driven live: every one ends with a verdict or
with one line.

The soak runs ten thousand of them: `python -m suites.core.test_malformed_streams 10000`.
"""

from __future__ import annotations

import sys
from collections import Counter

from suites.support.malformed_streams import KINDS, REFUSED, outcome

STREAMS = 400


def ended(seeds: range) -> Counter[tuple[str, int]]:
    """Run streams and count how they ended, by kind of mistake and exit code."""
    codes: Counter[tuple[str, int]] = Counter()
    for seed in seeds:
        kind, code, line = outcome(seed)
        assert code in (0, 1, 4) and "\n" not in line, (seed, kind, code, line)
        assert bool(line) == (code == 4) or code == 1, (seed, kind, code, line)
        codes[kind, code] += 1
    return codes


def test_malformed_streams_end_with_a_verdict_or_one_line() -> None:
    """What no history can have is always exit code 4; what may still be a lawful history, or
    shows a contradiction, may not.
    """
    codes = ended(range(STREAMS))
    assert {kind for kind, _ in codes} == set(KINDS)
    assert {code for kind, code in codes if kind in REFUSED} == {4}
    assert {code for _, code in codes} == {0, 1, 4}


if __name__ == "__main__":
    for (kind, code), count in sorted(ended(range(int(sys.argv[1]))).items()):
        print(f"{kind}: {count} ended with exit code {code}")
