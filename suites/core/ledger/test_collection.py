"""What is over is forgotten, and nothing that is judged depends on it."""

from __future__ import annotations

import pytest

from cachewitness.core.driving import Observer
from cachewitness.core.events import Event
from cachewitness.core.ledger.trie import Trie
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Finish, Step, Submit, Trace
from cachewitness.core.worker import Worker
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace

CONFIGURATIONS = {
    "three groups": Configuration(layouts.load("full-swa-mamba"), {"retention_interval": 64}),
    "shared-prefix boundaries": Configuration(
        layouts.load("full-mamba"), {"retention_interval": 0}
    ),
}


def seen(trace: Trace, engine: str, limit: int) -> tuple[Observer, Result]:
    """Run a trace on an engine under a ledger that forgets beyond so many prefixes."""
    running = parse(engine).open(trace.header)
    worker = Worker(running.describe())
    observer = Observer(running.describe(), keep=False)
    observer.checkers.collector.limit = limit
    observer.checkers.collector._least = limit
    for index, op in enumerate(trace.ops):
        events: list[Event] = worker.extend(running.apply(op))
        observer.see(events, index)
    return observer, observer.close(trace)


@pytest.mark.parametrize(
    "engine",
    [
        "reference",
        "reference:mutant=skipped-boundary-published",
        "reference:mutant=window-freed-early",
    ],
)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_verdicts_do_not_depend_on_what_is_forgotten(configuration: str, engine: str) -> None:
    """A ledger that forgets after every step finds the same, with the same opportunities, as one
    that never does.
    """
    for seed in range(3):
        trace = random_trace(
            CONFIGURATIONS[configuration].shape("manager"), seed, withdraw=True, operations=150
        )
        (_, forgetful) = seen(trace, engine, 0)
        (_, mindful) = seen(trace, engine, 1 << 40)
        assert forgetful.findings == mindful.findings
        assert forgetful.tallies == mindful.tallies


def test_a_long_history_takes_no_more_room_than_a_short_one() -> None:
    """After five times as many requests one after another, the ledger knows as many prefixes and
    requests as before.
    """
    sizes = []
    for count in (100, 500):
        ops = [
            op
            for i in range(count)
            for op in (Submit(f"r{i}", f"t{i}:40"), Step(run=[(f"r{i}", 40)]), Finish(f"r{i}"))
        ]
        header = random_trace(
            CONFIGURATIONS["three groups"].shape("manager"), 0, withdraw=False, operations=9
        ).header
        observer, result = seen(Trace(header, ops), "reference", 0)
        assert result.findings == [] and result.activity.evictions > 0
        most = len(observer.checkers.ledger.trie)
        for _ in range(2):
            observer.checkers.collector.collect()
        sizes.append((len(observer.checkers.ledger.trie), len(observer.checkers.ledger.requests)))
        assert most <= 4 * sizes[-1][0]
    assert sizes[0] == sizes[1]


def test_forgotten_numbers_stand_for_other_prefixes() -> None:
    """A prefix that begins a live one stays; the number of one that does not is given away, and
    its name starts anew.
    """
    trie = Trie()
    root = trie.root("plain")
    kept = trie.extend(root, [1, 2, 3])
    lost = trie.extend(root, [1, 5])
    assert set(trie.collect([kept[1]])) == {kept[2], lost[1]}
    assert trie.extend(root, [1, 2]) == kept[:2]
    again = trie.extend(root, [7])
    assert again[0] in (kept[2], lost[1]) and trie.depth[again[0]] == 1
    assert len(trie) == 4
