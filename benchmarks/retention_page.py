"""Writes the page of the retention benchmark: every number on it is taken from the runs at hand."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.area_chart import Area, stacked
from benchmarks.conversations import CACHED_STATE, KINDS, LIVE_STATE, Plan, Served
from cachewitness._util import pages


@dataclass(frozen=True)
class Setting:
    """Conversations over a pool of `pages` pages, the null block included; `pages` is how many a
    snapshot takes.
    """

    plan: Plan
    pages: int
    pages_per_snapshot: int


@dataclass(frozen=True)
class RunOf:
    """One run: in which setting, under which retention, on which engine."""

    setting: str
    arm: str
    engine: str
    served: Served


def write(
    runs: Sequence[RunOf], not_run: dict[str, str], settings: dict[str, Setting]
) -> tuple[str, str]:
    """Return the page as Markdown and its chart as SVG."""
    newest = max(run.engine for run in runs if run.engine.startswith("reference"))
    text = pages.render(
        "retention",
        newest=newest,
        **{name: _shown_setting(runs, name, setting, newest) for name, setting in settings.items()},
        **{
            name: _summary(runs, index, newest, settings)
            for index, name in enumerate(("dense", "sparse"))
        },
        sweep=_sweep(runs, newest, settings["pressure"]),
        agreement=_agreement(runs),
        not_run=not_run,
        findings=any(run.served.findings for run in runs),
        verdict=_verdict(runs),
        opportunities=_opportunities(runs),
        versions=sorted({run.engine.split()[-1] for run in runs if run.engine.startswith("vLLM")}),
        python=platform.python_version(),
    )
    panels = [
        Area(f"{title}: {arm}", run.served.samples, [turn.hit_rate for turn in run.served.turns])
        for setting, title in (("pressure", "1 page a snapshot"), ("wide", "4 pages a snapshot"))
        for arm in _arms(runs, setting)
        if arm != "default"
        for run in runs
        if (run.setting, run.arm, run.engine) == (setting, arm, newest)
    ]
    return text, stacked(panels, KINDS, "prefix-cache hit rate (0 to 1)")


POOL = "pool "
"""How the settings of the sweep begin; the number of pages follows."""


def _shown_setting(
    runs: Sequence[RunOf], name: str, setting: Setting, newest: str
) -> dict[str, Any]:
    """Return what the page shows of a setting: its measures and its tables."""
    return {
        "plan": setting.plan,
        "pages": setting.pages,
        "pages_per_snapshot": setting.pages_per_snapshot,
        "longest": setting.plan.longest(),
        "hit_rates": _hit_rates(runs, name),
        "work": _work(runs, name),
        "census": _census(runs, name, newest),
    }


def _summary(
    runs: Sequence[RunOf], end: int, newest: str, settings: dict[str, Setting]
) -> dict[str, str]:
    """Return the shares that the text names: of the first arm (dense) or of the last (the
    interval).
    """
    pressed, wide = (
        _one(runs, name, _ends(runs, name)[end], newest) for name in ("pressure", "wide")
    )
    return {
        "last": _percent(pressed.turns[-1].hit_rate),
        "all": _percent(pressed.hit_rate),
        "cached": _percent(_share(pressed, [CACHED_STATE], settings["pressure"])),
        "wide": _percent(_share(wide, [LIVE_STATE, CACHED_STATE], settings["wide"])),
    }


def _hit_rates(runs: Sequence[RunOf], setting: str) -> str:
    chosen = _shown(runs, setting)
    turns = range(1, len(chosen[0].served.turns) + 1)
    rows = [["engine", "retention", *(f"turn {turn}" for turn in turns), "all"]]
    for run in chosen:
        rates = [_percent(turn.hit_rate) for turn in run.served.turns]
        rows.append([run.engine, run.arm, *rates, f"**{_percent(run.served.hit_rate)}**"])
    return _table(rows)


def _work(runs: Sequence[RunOf], setting: str) -> str:
    rows = [
        [
            "engine",
            "retention",
            "keys evicted: attention",
            "keys evicted: state",
            "tokens prefilled",
            "steps",
        ]
    ]
    for run in _shown(runs, setting):
        turns = run.served.turns
        sums = [
            sum(turn.evicted_attention for turn in turns),
            sum(turn.evicted_state for turn in turns),
            sum(turn.prefilled for turn in turns),
            run.served.steps,
        ]
        rows.append([run.engine, run.arm, *(f"{number:,}" for number in sums)])
    return _table(rows)


def _sweep(runs: Sequence[RunOf], newest: str, setting: Setting) -> str:
    """Tell the hit rate of the last turn, and of all turns, over the pool's size."""
    arms = _arms(runs, "pressure")
    chosen = {f"{POOL}{setting.pages - 1}": "pressure"} | {
        run.setting: run.setting for run in runs if POOL in run.setting
    }
    rows = [["pages", *(f"{arm}, {what}" for arm in arms for what in ("last turn", "all"))]]
    for name, where in sorted(chosen.items(), key=lambda item: int(item[0].removeprefix(POOL))):
        served = [_one(runs, where, arm, newest) for arm in arms]
        rates = [
            _percent(rate) for one in served for rate in (one.turns[-1].hit_rate, one.hit_rate)
        ]
        rows.append([name.removeprefix(POOL), *rates])
    return _table(rows)


def _census(runs: Sequence[RunOf], setting: str, engine: str) -> str:
    rows = [["retention", "turn", *KINDS]]
    for arm in _ends(runs, setting):
        served = _one(runs, setting, arm, engine)
        for turn in range(len(served.turns)):
            during = [pages for at, pages in served.samples if turn <= at < turn + 1]
            means = [
                sum(pages[kind] for pages in during) / len(during) for kind in range(len(KINDS))
            ]
            rows.append([arm, str(turn + 1), *(f"{mean:.0f}" for mean in means)])
    return _table(rows)


def _agreement(runs: Sequence[RunOf]) -> str:
    rows = [["engine", "retention", "setting", "events", "beside the reference of that release"]]
    for run in runs:
        if run.engine.startswith("vLLM"):
            release = ".".join(run.engine.split()[-1].split(".")[:2])
            beside = [
                r
                for r in runs
                if (r.setting, r.arm, r.engine) == (run.setting, run.arm, f"reference {release}")
            ]
            rows.append(
                [
                    run.engine,
                    run.arm,
                    run.setting,
                    f"{run.served.events:,}",
                    agreement(run.served, beside),
                ]
            )
    return _table(rows) if len(rows) > 1 else ""


def agreement(served: Served, beside: Sequence[RunOf]) -> str:
    """Say how a run compares with the one beside it."""
    if not beside:
        return "not compared"
    other = beside[0].served
    if served.digest == other.digest:
        return "identical"
    if served.turns == other.turns:
        return "same hits, evictions and prefill in every turn; events differ"
    return (
        f"differs: {_percent(served.hit_rate)} of tokens hit, {_percent(other.hit_rate)} in the"
        " reference"
    )


def _verdict(runs: Sequence[RunOf]) -> str:
    findings = [finding for run in runs for finding in run.served.findings]
    if findings:
        failed = sum(bool(run.served.findings) for run in runs)
        return (
            f"**{len(findings)} findings in {failed} of {len(runs)} runs**, the first:"
            f" {findings[0]}"
        )
    operations, events = (
        sum(getattr(run.served, what) for run in runs) for what in ("operations", "events")
    )
    return f"All {len(runs)} runs pass: {operations:,} operations, {events:,} events, no finding."


def _opportunities(runs: Sequence[RunOf]) -> str:
    rows = [["checker", "opportunities"]]
    for name in runs[0].served.opportunities:
        opportunities = sum(run.served.opportunities[name] for run in runs)
        rows.append([name, f"{opportunities:,}" if opportunities else "0: nothing to judge here"])
    return _table(rows)


def _shown(runs: Sequence[RunOf], setting: str) -> list[RunOf]:
    """Return the runs of a setting that tables show: every vLLM, and the reference of the newest
    release.
    """
    newest = max(run.engine for run in runs if run.engine.startswith("reference"))
    return [
        run
        for run in runs
        if run.setting == setting and (run.engine == newest or run.engine.startswith("vLLM"))
    ]


def _arms(runs: Sequence[RunOf], setting: str) -> list[str]:
    return list(dict.fromkeys(run.arm for run in runs if run.setting == setting))


def _ends(runs: Sequence[RunOf], setting: str) -> tuple[str, str]:
    """Return the two arms that are compared: the first, dense, and the last, the interval."""
    arms = _arms(runs, setting)
    return arms[0], arms[-1]


def _one(runs: Sequence[RunOf], setting: str, arm: str, engine: str) -> Served:
    return next(
        run.served for run in runs if (run.setting, run.arm, run.engine) == (setting, arm, engine)
    )


def _share(served: Served, kinds: Sequence[str], setting: Setting) -> float:
    """Return the share of the pool that is of these kinds, the null block left out, on average
    over time.
    """
    pages = sum(counts[KINDS.index(kind)] for _, counts in served.samples for kind in kinds)
    return pages / len(served.samples) / (setting.pages - 1)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    numeric = [
        all(row[column][:1].isdigit() or row[column].startswith("**") for row in body)
        for column in range(len(head))
    ]
    rule = ["--:" if is_number else "---" for is_number in numeric]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])
