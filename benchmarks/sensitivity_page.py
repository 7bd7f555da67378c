"""Writes `docs/sensitivity.md` from what `benchmarks/sensitivity.py` measured. No number is typed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.damages import DAMAGES
from benchmarks.sensitivity_result import CONDITIONS, Found, Outcome

OTHERS_MEMORY, OTHERS_BLOCKS = "recurrent memory of another tenant", "all full-attention blocks of another tenant"
GROUPS = ("full", "recurrent", "window")
VERDICTS = {"pass": "pass", "fail": "**fail**", "unknown": "unknown", "nothing checked": "nothing checked"}


def page(found: Found) -> str:
    """Return the page."""
    parts = [
        "# What a score sees of a damaged cache, and what it does not",
        "This page is written by `python -m benchmarks.sensitivity`. For each way to damage a cache it says how many answers "
        "that costs, how far the logits are from those of a run without a cache, and which detector notices.",
        _setting(found),
        "## How it was measured",
        _method(found),
        "## At the end of the shared prefix (`hit`)",
        _figures(found, "hit"),
        "## On exact replay (`replay`)",
        _figures(found, "replay"),
        "## Which detector notices",
        _detectors_told(found),
        _detectors(found),
        "## What follows",
        _argument(found),
    ]
    return "\n\n".join(parts) + "\n"


def _setting(found: Found) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in found.versions.items())
    return (
        f"{versions}. {found.n} questions of `fixtures/gsm8k_format`, as many of each tenant; greedy answers, so there is no "
        f"seed to choose. Two runs without a cache differ in {found.noise} of {found.n} answers. Noise floor of logits "
        f"{found.floor:.1e}, tolerance {found.tolerance:.1e}."
    )


def _method(found: Found) -> str:
    rows = {outcome.condition: outcome.distance.rows for outcome in found.outcomes[""]}
    positions = " and ".join(f"{count:,} on `{condition}`" for condition, count in rows.items())
    return (
        "A request is damaged once, in its first step, between look-up and computation, in the real pages that it resumes "
        "from. For every damage the cache is forgotten and warmed anew: with the contexts that questions share (`hit`) or with "
        "the very same prompts (`replay`). *Answers* are generated freely and compared question by question: lost is right "
        "without a cache and wrong with it, gained the reverse. *Logits* are compared in a second pass in which the model is "
        "forced along the answers of the run without a cache, at every position behind the resumed prefix, question and "
        "answer alike: "
        f"{positions}. Without forcing, positions behind the first wrong token could not be compared. KL is the mean "
        "divergence of the damaged from the cold distribution, in nats."
    )


def _figures(found: Found, condition: str) -> str:
    rows = []
    for name, outcomes in found.outcomes.items():
        outcome = _of(outcomes, condition)
        judged, distance = outcome.judged, outcome.distance
        groups = {group.group: f"{100 * group.right / group.n:.0f}" for group in judged.groups}
        rows.append(
            [
                name or "*none: cached, undamaged*",
                f"{100 * judged.right / judged.n:.1f}",
                *(groups.get(group, "") for group in GROUPS),
                f"{outcome.changed}",
                f"{judged.lost}",
                f"{judged.gained}",
                f"{distance.kl:.1e}",
                f"{distance.mean:.1e}",
                f"{distance.largest:.1e}",
            ]
        )
    cold = found.outcomes[""][0].judged
    told = ", ".join(f"{g.group} {100 * g.right_cold / g.n:.0f} %" for g in cold.groups)
    head = (
        f"Right without a cache: {100 * cold.right_cold / cold.n:.1f} % ({told}). `changed` counts answers with another token."
    )
    columns = ["damage", "right %", *GROUPS, "changed", "lost", "gained", "KL", "mean Δ logit", "max Δ logit"]
    return f"{head}\n\n{table(columns, rows, left=1)}"


def _detectors_told(found: Found) -> str:
    return (
        "*Ledger*: whether the wrong content has another name than the right one, so that the ledger of contents sees it "
        "(this follows from what a ledger knows, and is not measured here); what a device loses or rounds keeps its name. "
        "*Tensors*: whether a logit is beyond the "
        f"tolerance. *Tokens*: the verdict of the score's gate on these {found.n} pairs; as two runs without a cache agree in "
        "every token here, one answer that differs by more than a near-tie fails. *Score alone*: the same pairs judged without "
        "a noise floor, as on an engine whose answers differ by chance: the paired test of lost answers decides. *Named*: the "
        "groups of questions that lost significantly on either pass, and so the cache that the score accuses. Entries are "
        "`hit` / `replay`."
    )


def _detectors(found: Found) -> str:
    rows = []
    for damage in DAMAGES:
        outcomes = [_of(found.outcomes[damage.name], condition) for condition in CONDITIONS]
        rows.append(
            [
                damage.name,
                "yes" if damage.ledger else "no",
                _both(outcomes, lambda outcome: "yes" if _beyond(found, outcome) else "no"),
                _both(outcomes, lambda outcome: VERDICTS[outcome.judged.verdict]),
                _both(outcomes, lambda outcome: VERDICTS[outcome.blind.verdict]),
                _both(outcomes, lambda outcome: ", ".join(outcome.judged.suspects) or "–"),
            ]
        )
    return table(["damage", "ledger", "tensors", "tokens", "score alone", "named"], rows, left=6)


def _argument(found: Found) -> str:
    every = {damage.name for damage in DAMAGES}
    by_ledger = {damage.name for damage in DAMAGES if damage.ledger}
    by_tensors = _names(found, lambda outcome: _beyond(found, outcome))
    by_tokens = _names(found, lambda outcome: outcome.judged.verdict == "fail")
    by_score = {condition: _costly(found, condition) for condition in CONDITIONS}
    costly = set().union(*by_score.values())
    only_ledger, only_tensors = by_ledger - by_tensors, by_tensors - by_ledger - by_tokens
    points = [
        f"**A score sees what costs answers.** Of {len(every)} damages {len(costly)} cost answers significantly: "
        f"{len(by_score['hit'])} at the end of the shared prefix, {len(by_score['replay'])} on replay. Only on replay: "
        f"{_listed(by_score['replay'] - by_score['hit'])}. Only at the shared prefix: "
        f"{_listed(by_score['hit'] - by_score['replay'])}. Behind a shared prefix the question's own tokens wash out much "
        "of what was wrong; on replay hardly a token is left to do so. A gate needs both passes.",
        f"**It does not see the rest:** {_listed(every - costly)}. Where answers differ by chance, nobody notices these.",
        f"**Tokens see more,** where an engine repeats itself exactly: {len(by_tokens)} of {len(every)}. They miss "
        f"{_listed(every - by_tokens)}, which leave every answer as it is.",
        f"**Tensors see {len(by_tensors)} of {len(every)}** and miss {_listed(every - by_tensors)}. Keys carry their "
        "positions, so attention over exchanged blocks is the same sum in another order: no number differs, no answer "
        "does, and yet the table is wrong, and the block that is evicted or shared next is not the one that was meant.",
        f"**The ledger sees {len(by_ledger)} of {len(every)} without computing a number.** "
        f"It is blind to what a device does behind right tables: {_listed(every - by_ledger)}.",
        _named(found),
        f"**A score can rise.** {_gains(found)} Two accuracies set gains off against losses; pairs do not.",
    ]
    told = "\n".join(f"* {point}" for point in points)
    return (
        f"{told}\n\nSo there are four detectors. The ledger alone sees {_listed(only_ledger)}; tensors alone see "
        f"{_listed(only_tensors)}. Tokens and score see nothing here that tensors do not. They are what is left where an "
        "engine tells neither its tables nor its logits: tokens if it repeats itself exactly, the score if "
        "it does not. And the score alone says what a damage costs whoever asks: tensors are as far apart under damage that "
        "costs nothing as under damage that costs half of the answers."
    )


def _costly(found: Found, condition: str) -> set[str]:
    return _names(found, lambda outcome: outcome.condition == condition and outcome.blind.verdict == "fail")


def _names(found: Found, holds: Callable[[Outcome], bool]) -> set[str]:
    return {name for name, outcomes in found.outcomes.items() if name and any(holds(outcome) for outcome in outcomes)}


def _beyond(found: Found, outcome: Outcome) -> bool:
    return not outcome.distance.largest <= found.tolerance


def _of(outcomes: Sequence[Outcome], condition: str) -> Outcome:
    return next(outcome for outcome in outcomes if outcome.condition == condition)


def _both(outcomes: Sequence[Outcome], tell: Callable[[Outcome], str]) -> str:
    return " / ".join(tell(outcome) for outcome in outcomes)


def _listed(names: Iterable[str]) -> str:
    order = [damage.name for damage in DAMAGES]
    return ", ".join(f"*{name}*" for name in sorted(names, key=order.index)) or "none"


def _named(found: Found) -> str:
    """Tell whether the group of questions that lost most is that of the cache which was damaged."""
    right: dict[str, list[str]] = {group: [] for group in GROUPS}
    wrong = []
    for damage in DAMAGES:
        for outcome in found.outcomes[damage.name]:
            if damage.cache and (first := "".join(outcome.judged.suspects[:1])):
                where = f"*{damage.name}* (`{outcome.condition}`)"
                if first == damage.cache:
                    right[first].append(where)
                else:
                    wrong.append(f"{where} accuses `{first}`")
    told = "; ".join(f"`{group}`: {', '.join(names) or 'never'}" for group, names in right.items())
    memory, blocks = (_group_loss(found, damage, "recurrent") for damage in (OTHERS_MEMORY, OTHERS_BLOCKS))
    return (
        "**The groups name the cache, but not always.** Where groups of questions lose significantly, the one that loses most "
        f"is that of the damaged cache in {sum(map(len, right.values()))} cases ({told}) and another one in {len(wrong)} "
        f"({'; '.join(wrong) or 'none'}). A wrong state reaches every later layer, and a model uses more than one path: "
        f"questions of group `recurrent` lose {memory:.0f} points at the shared prefix with another tenant's memory, and "
        f"{blocks:.0f} with another tenant's full-attention blocks. An accusation is where to look first, not a verdict."
    )


def _group_loss(found: Found, damage: str, group: str) -> float:
    """Return how many points a group of questions loses at the shared prefix."""
    score = next(score for score in _of(found.outcomes[damage], "hit").judged.groups if score.group == group)
    return 100 * (score.right_cold - score.right) / score.n


def _gains(found: Found) -> str:
    gained = _names(found, lambda outcome: outcome.judged.gained > 0)
    cold = found.outcomes[""][0].judged
    if gained or cold.right_cold < cold.n:
        return f"Under {len(gained)} damages a question was answered right that is answered wrong without a cache."
    return "Not here, where everything is right without a cache and there is nothing to gain, but with a weaker model."


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Return a table; the first `left` columns are aligned to the left."""
    marks = ["---"] * left + ["--:"] * (len(columns) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in [columns, marks, *rows])
