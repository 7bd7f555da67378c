"""Writes the page of the retention benchmark: every number on it is taken from the runs at hand."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.chart import Area, stacked
from benchmarks.conversations import CACHED_STATE, KINDS, LIVE_STATE, Plan, Served


@dataclass(frozen=True)
class Setting:
    """Conversations over a pool of `pages` pages, the null block included; `pages` is how many a snapshot takes."""

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


def write(runs: Sequence[RunOf], not_run: dict[str, str], settings: dict[str, Setting], script: str) -> tuple[str, str]:
    """Return the page as Markdown and its chart as SVG."""
    newest = max(run.engine for run in runs if run.engine.startswith("reference"))
    parts = [
        "# Retention, before and after",
        _intro(runs, newest, settings["pressure"]),
        "![Pages of the pool by kind, and the hit rate, turn by turn](retention.svg)",
        "## One page per snapshot, pool under pressure",
        _setting(settings["pressure"]),
        _ARMS,
        _hit_rates(runs, "pressure"),
        _work(runs, "pressure"),
        "Pages of the pool by kind, mean over each turn:",
        _pages(runs, "pressure", newest),
        "### In other pools",
        _sweep(runs, newest, settings["pressure"]),
        "## Four pages per snapshot",
        _wide(runs, newest, settings["wide"]),
        _setting(settings["wide"]),
        _hit_rates(runs, "wide"),
        _work(runs, "wide"),
        _pages(runs, "wide", newest),
        "## What thinning costs when there is room",
        _ROOM,
        _setting(settings["room"]),
        _hit_rates(runs, "room"),
        _work(runs, "room"),
        "## vLLM and the reference",
        _agreement(runs),
        _absent(not_run),
        "## Checkers",
        _verdict(runs),
        "## Run it",
        _command(script, runs),
    ]
    panels = [
        Area(f"{title}: {arm}", run.served.samples, [turn.hit_rate for turn in run.served.turns])
        for setting, title in (("pressure", "1 page a snapshot"), ("wide", "4 pages a snapshot"))
        for arm in _arms(runs, setting)
        if arm != "default"
        for run in runs
        if (run.setting, run.arm, run.engine) == (setting, arm, newest)
    ]
    return "\n\n".join(part for part in parts if part) + "\n", stacked(panels, KINDS, "prefix-cache hit rate (0 to 1)")


POOL = "pool "
"""How the settings of the sweep begin; the number of pages follows."""

_ARMS = (
    "*Dense* keeps every snapshot (the interval explicitly `None`; what leaving it unset meant from 0.24 to 0.28). *Default* "
    "leaves the option out. *Interval 128* keeps one in 8 blocks and the reachable boundaries. The reference of the newest "
    "release stands for those of the others, which are compared with their vLLM below."
)

_ROOM = (
    "Here the whole answer stays in the conversation, and the pool has room. What was generated is part of the next prompt, "
    "and the next turn can only resume where a state was kept. Dense retention has one at the last block, an interval one at "
    "most an interval back. Reachable boundaries alone (an interval of 0, the default of later releases) leave the one at the "
    "end of the last *prompt*, so the answer is computed again: sparse retention is a trade."
)


def _intro(runs: Sequence[RunOf], newest: str, setting: Setting) -> str:
    dense, sparse = (_one(runs, "pressure", arm, newest) for arm in _ends(runs, "pressure"))
    last = len(dense.turns)
    states, thinned = (_share(served, [CACHED_STATE], setting) for served in (dense, sparse))
    return (
        "This reproduces, in process and without a model, what vllm-project/vllm#45845 is about. A recurrent group leaves a "
        "state snapshot behind at every block boundary that a chunk or a decode crosses. Two a request are live; those behind "
        "it stay cached and fill the pool, until the attention blocks of conversations that will go on are evicted for them."
        "\n\n"
        f"In the last turn of {last}, dense retention hits {_percent(dense.turns[-1].hit_rate)} of the prompts' tokens, an "
        f"interval of 8 blocks {_percent(sparse.turns[-1].hit_rate)}; over all turns {_percent(dense.hit_rate)} and "
        f"{_percent(sparse.hit_rate)}. Cached snapshots take {_percent(states)} of the pool under dense retention and "
        f"{_percent(thinned)} under the interval, on average over time ({newest}).\n\n"
        + (
            "Checkers found something in these runs, see below."
            if any(run.served.findings for run in runs)
            else "Both pass every checker: nothing is corrupted and no rule is broken, only the policy differs."
        )
    )


def _wide(runs: Sequence[RunOf], newest: str, setting: Setting) -> str:
    dense, sparse = (_one(runs, "wide", arm, newest) for arm in _ends(runs, "wide"))
    states, thinned = (_share(served, [LIVE_STATE, CACHED_STATE], setting) for served in (dense, sparse))
    return (
        "The pull request reports a test set-up in which attention blocks are smaller than the page of a state, so that a "
        "snapshot spans several base blocks and about 80 % of the pool is snapshots. Upstream vLLM has no such option: there a "
        "snapshot is one block. `pages_per_snapshot` is a parameter of the reference alone. With it snapshots, live ones "
        f"included, take {_percent(states)} of the pool under dense retention and {_percent(thinned)} under the interval, on "
        "average over time."
    )


def _setting(setting: Setting) -> str:
    plan = setting.plan
    thoughts = f"{plan.thoughts} tokens of thoughts, which the next prompt leaves out, and " if plan.thoughts else ""
    return (
        f"{plan.talkers} conversations of {plan.turns} turns, {plan.running} served at once; a common system prompt of "
        f"{plan.system} tokens; each turn brings about {plan.words} new words and generates {thoughts}an answer of about "
        f"{plan.answer} tokens. A request grows to {plan.longest()} tokens. Block size 16, prefill {plan.chunk} tokens a step. "
        f"Pool: {setting.pages - 1} pages and the null block, {setting.pages_per_snapshot} for each snapshot."
    )


def _hit_rates(runs: Sequence[RunOf], setting: str) -> str:
    chosen = _shown(runs, setting)
    turns = range(1, len(chosen[0].served.turns) + 1)
    rows = [["engine", "retention", *(f"turn {turn}" for turn in turns), "all"]]
    for run in chosen:
        rates = [_percent(turn.hit_rate) for turn in run.served.turns]
        rows.append([run.engine, run.arm, *rates, f"**{_percent(run.served.hit_rate)}**"])
    return "Hit tokens of looked-up tokens (prompts alone), by turn:\n\n" + _table(rows)


def _work(runs: Sequence[RunOf], setting: str) -> str:
    rows = [["engine", "retention", "keys evicted: attention", "keys evicted: state", "tokens prefilled", "steps"]]
    for run in _shown(runs, setting):
        turns = run.served.turns
        sums = [
            sum(turn.evicted_attention for turn in turns),
            sum(turn.evicted_state for turn in turns),
            sum(turn.prefilled for turn in turns),
            run.served.steps,
        ]
        rows.append([run.engine, run.arm, *(f"{number:,}" for number in sums)])
    return "What it costs, over the whole run:\n\n" + _table(rows)


def _sweep(runs: Sequence[RunOf], newest: str, setting: Setting) -> str:
    """Tell the hit rate of the last turn, and of all turns, over the pool's size."""
    arms = _arms(runs, "pressure")
    chosen = {f"{POOL}{setting.pages - 1}": "pressure"} | {run.setting: run.setting for run in runs if POOL in run.setting}
    rows = [["pages", *(f"{arm}, {what}" for arm in arms for what in ("last turn", "all"))]]
    for name, where in sorted(chosen.items(), key=lambda item: int(item[0].removeprefix(POOL))):
        served = [_one(runs, where, arm, newest) for arm in arms]
        rates = [_percent(rate) for one in served for rate in (one.turns[-1].hit_rate, one.hit_rate)]
        rows.append([name.removeprefix(POOL), *rates])
    return (
        "Blocks are evicted in the order in which they were given back, so snapshots that nobody asks for go first: the "
        "collapse needs a pool that holds the conversations, but not the snapshots that one round of turns leaves behind as "
        f"well. The same conversations ({newest}):\n\n" + _table(rows)
    )


def _pages(runs: Sequence[RunOf], setting: str, engine: str) -> str:
    rows = [["retention", "turn", *KINDS]]
    for arm in _ends(runs, setting):
        served = _one(runs, setting, arm, engine)
        for turn in range(len(served.turns)):
            during = [pages for at, pages in served.samples if turn <= at < turn + 1]
            means = [sum(pages[kind] for pages in during) / len(during) for kind in range(len(KINDS))]
            rows.append([arm, str(turn + 1), *(f"{mean:.0f}" for mean in means)])
    return _table(rows)


def _agreement(runs: Sequence[RunOf]) -> str:
    rows = [["engine", "retention", "setting", "events", "beside the reference of that release"]]
    for run in runs:
        if run.engine.startswith("vLLM"):
            release = ".".join(run.engine.split()[-1].split(".")[:2])
            beside = [r for r in runs if (r.setting, r.arm, r.engine) == (run.setting, run.arm, f"reference {release}")]
            rows.append([run.engine, run.arm, run.setting, f"{run.served.events:,}", agreement(run.served, beside)])
    if len(rows) == 1:
        return ""
    return (
        "The client waits for answers, so an engine that hits less is asked for more steps; the operations are compared too. "
        "*Identical* means every event of the run, block ids included (one digest over all of them).\n\n" + _table(rows)
    )


def agreement(served: Served, beside: Sequence[RunOf]) -> str:
    """Say how a run compares with the one beside it."""
    if not beside:
        return "not compared"
    other = beside[0].served
    if served.digest == other.digest:
        return "identical"
    if served.turns == other.turns:
        return "same hits, evictions and prefill in every turn; events differ"
    return f"differs: {_percent(served.hit_rate)} of tokens hit, {_percent(other.hit_rate)} in the reference"


def _absent(not_run: dict[str, str]) -> str:
    return "\n".join(f"Not run: {what} ({why})." for what, why in not_run.items())


def _verdict(runs: Sequence[RunOf]) -> str:
    findings = [finding for run in runs for finding in run.served.findings]
    rows = [["checker", "opportunities"]]
    for name in runs[0].served.opportunities:
        opportunities = sum(run.served.opportunities[name] for run in runs)
        rows.append([name, f"{opportunities:,}" if opportunities else "0: nothing to judge here"])
    failed = [run for run in runs if run.served.findings]
    said = (
        f"All {len(runs)} runs pass: {sum(run.served.operations for run in runs):,} operations, "
        f"{sum(run.served.events for run in runs):,} events, no finding."
        if not findings
        else f"**{len(findings)} findings in {len(failed)} of {len(runs)} runs**, the first: {findings[0]}"
    )
    return said + "\n\n" + _table(rows)


def _command(script: str, runs: Sequence[RunOf]) -> str:
    versions = sorted({run.engine.split()[-1] for run in runs if run.engine.startswith("vLLM")})
    paths = "".join(f" \\\n    --vllm vllm-{version}" for version in versions)
    return (
        f"```\npython benchmarks/{script}{paths} \\\n    --write docs/retention.md\n```\n\n"
        "Each `--vllm` names a folder with an unpacked wheel of that release; compiled parts are not needed. This page was "
        f"written by that command under Python {platform.python_version()}. The runs are deterministic: the numbers do not "
        "depend on the machine."
    )


def _shown(runs: Sequence[RunOf], setting: str) -> list[RunOf]:
    """Return the runs of a setting that tables show: every vLLM, and the reference of the newest release."""
    newest = max(run.engine for run in runs if run.engine.startswith("reference"))
    return [run for run in runs if run.setting == setting and (run.engine == newest or run.engine.startswith("vLLM"))]


def _arms(runs: Sequence[RunOf], setting: str) -> list[str]:
    return list(dict.fromkeys(run.arm for run in runs if run.setting == setting))


def _ends(runs: Sequence[RunOf], setting: str) -> tuple[str, str]:
    """Return the two arms that are compared: the first, dense, and the last, the interval."""
    arms = _arms(runs, setting)
    return arms[0], arms[-1]


def _one(runs: Sequence[RunOf], setting: str, arm: str, engine: str) -> Served:
    return next(run.served for run in runs if (run.setting, run.arm, run.engine) == (setting, arm, engine))


def _share(served: Served, kinds: Sequence[str], setting: Setting) -> float:
    """Return the share of the pool that is of these kinds, the null block left out, on average over time."""
    pages = sum(counts[KINDS.index(kind)] for _, counts in served.samples for kind in kinds)
    return pages / len(served.samples) / (setting.pages - 1)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    numeric = [all(row[column][:1].isdigit() or row[column].startswith("**") for row in body) for column in range(len(head))]
    rule = ["--:" if is_number else "---" for is_number in numeric]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])
