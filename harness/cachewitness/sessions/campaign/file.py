"""The file of a campaign: which engines, policies, suites, fuzz streams and seeds, and within which
budget.

name = "nightly"
seeds = [0, 1]
suites = ["invariants", "random"]     # as `run --suite`
streams = ["main"]                    # of the fuzzer: each draws other traces

[[engines]]
engine = "reference"                  # as `run --engine`
policies = ["vllm", "furiosa"]

[budget]
traces = 1000                         # of each stream, for each engine, policy and seed
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cachewitness._util import reading
from cachewitness._util.errors import UsageError


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine and how it is run, by options of `run` and `fuzz`. `label` stands for what its
    name does not tell.
    """

    engine: str
    policies: tuple[str, ...] = ("vllm",)
    release: str | None = None
    layouts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    isolate: str | None = None
    deadline: float | None = None
    memory_gib: float | None = None
    engines_file: str = ""
    label: str = ""
    suites: tuple[str, ...] | None = None
    streams: tuple[str, ...] | None = None


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is done.

    `traces` of each stream, for each engine, policy and seed; `per_unit` of them in one unit of
    work, and `configurations` of a suite. Of each anomaly on each engine `shrink` findings are made
    small. `seconds`: stop then (0: when all is done). A unit may take `deadline` seconds; after
    `attempts` workers have ended at it, it is given up.
    """

    traces: int = 400
    per_unit: int = 50
    configurations: int = 4
    shrink: int = 3
    seconds: float = 0.0
    deadline: float = 3600.0
    attempts: int = 5


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the campaign is kept: a file of SQLite or the URL of a PostgreSQL server, and a
    folder or a URL for traces.
    """

    database: str = ".cachewitness/campaigns/state.sqlite"
    traces: str = ".cachewitness/campaigns/traces"


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A campaign as its file says."""

    name: str
    engines: tuple[Engine, ...]
    seeds: tuple[int, ...] = (0,)
    suites: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    lockstep: bool = True
    budget: Budget = Budget()
    state: State = State()


LEAST = {
    "traces": 1,
    "per_unit": 1,
    "configurations": 1,
    "shrink": 1,
    "attempts": 1,
    "seconds": 0.0,
    "deadline": 1.0,
}
"""The smallest value that each field of `budget` takes."""
MOST = 1_000_000_000
"""The largest."""


def load(path: Path) -> File:
    """Read the file of a campaign. Raises UsageError naming the file and the field if anything
    does not fit.
    """
    table = reading.toml(path)
    if isinstance(budget := table.get("budget"), dict) and "lease" in budget:
        now = (
            "a unit is no longer leased: it is carried out again as soon as its worker ends, and"
            " `deadline` says how many seconds it may take"
        )
        raise UsageError(f"{path}: budget.lease: {now}; take the line out - at `$.budget`")
    try:
        file = msgspec.convert(table, File)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from None
    _check(file, path)
    return file


def _check(file: File, path: Path) -> None:
    for name, least in LEAST.items():
        value = getattr(file.budget, name)
        if not least <= value <= MOST:
            limit = f"at most {MOST:,}" if value > MOST else f"at least {least:g}"
            raise UsageError(f"{path}: budget.{name} is {value}; it is {limit} - at `$.budget`")
    for field, values in (("engines", file.engines), ("seeds", file.seeds)):
        if not values:
            raise UsageError(f"{path}: {field} is empty; name at least one - at `$.{field}`")
    if any(seed < 0 for seed in file.seeds):
        raise UsageError(f"{path}: a seed is at least 0 - at `$.seeds`")
    for field, names in (("seeds", file.seeds), ("suites", file.suites), ("streams", file.streams)):
        if len(set(names)) < len(names):
            raise UsageError(f"{path}: {field} names something twice - at `$.{field}`")
    for index, engine in enumerate(file.engines):
        if not engine.policies:
            raise UsageError(
                f"{path}: policies is empty; name at least one - at `$.engines[{index}]`"
            )
    if not file.name.strip():
        raise UsageError(
            f"{path}: name is empty; it names the campaign in its database - at `$.name`"
        )
