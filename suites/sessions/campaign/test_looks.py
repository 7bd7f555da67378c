"""What a look of the driver costs grows with what is new, not with what is done; and nothing
that is done is missed for it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from statistics import median

import pytest

from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.driver import CampaignProgress, Driver
from cachewitness.sessions.campaign.queue import Queue
from cachewitness.sessions.campaign.store import Store
from cachewitness.sessions.campaign.unit import Outcome, Unit, stored
from suites.support.campaigns import InTurn, driven, planned, settings

pytestmark = pytest.mark.usefixtures("at_once")

MANY = (
    'name = "many"\nstreams = ["main"]\n[[engines]]\nengine = "reference"\nlayouts ='
    ' ["full"]\n[budget]\nper_unit = 1\n'
)


def nothing(unit: Unit, store: Store) -> Outcome:
    return Outcome()


def cost_of_a_look(units: int, folder: Path) -> float:
    """Return the instructions that SQLite carries out for a usual look of a campaign of so many
    units.
    """
    folder.mkdir()
    steps = 0
    costs = []

    def stepped() -> int:
        nonlocal steps
        steps += 1
        return 0

    def on_progress(progress: CampaignProgress) -> None:
        nonlocal steps
        costs.append(steps)
        steps = 0

    driver = Driver(
        planned(f"{MANY}traces = {units}\n", folder),
        settings(folder, workers=1),
        InTurn(nothing),
        on_progress,
    )
    driver._database._connection.set_progress_handler(stepped, 1)
    assert driver.run().progress.done == units + 1
    return median(costs)


def test_a_look_costs_no_more_the_more_is_done(tmp_path: Path) -> None:
    few, many = (cost_of_a_look(units, tmp_path / str(units)) for units in (20, 200))
    assert many < 1.2 * few


@pytest.mark.parametrize("place", [2, 7])
def test_a_unit_that_is_done_out_of_its_order_is_seen(place: int, tmp_path: Path) -> None:
    """Somebody holds it while all others are done, or another driver entered it as done before
    its turn.
    """
    made = planned(f"{MANY}traces = 8\n", tmp_path)
    kept = settings(tmp_path, workers=1)
    key = made.entries[place][0]
    dones = list[int]()
    with closing(Database(kept.database)) as database:
        queue = Queue(database, made.id, 5)
        queue.enrol(made.name, kept.traces, made.entries)
        held = [queue.lease("elsewhere", 60) for _ in range(3)] if place == 2 else []

        def on_progress(progress: CampaignProgress) -> None:
            dones.append(progress.done)
            if place == 2 and progress.done == len(made.units) - 3:
                assert all(queue.complete(one, stored(Outcome(), one.key)) for one in held if one)
            elif place != 2 and len(dones) == 2:
                database.changed(
                    "UPDATE units SET state = 'done', judged = 1, outcome = ? WHERE unit = ?",
                    stored(Outcome(), key),
                    key,
                )

        result = driven(made, kept, InTurn(nothing), on_progress)
    assert (
        result.totals.undone == []
        and result.progress.done == len(made.units)
        and result.progress.late == 0
    )
    assert dones == sorted(dones) and dones[-1] == len(made.units)
