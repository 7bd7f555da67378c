"""Whether what an engine declares of itself makes sense, and whether its events bear it out.

A declaration decides which rules apply and how strict they are. So it is input like any event: what
no cache can be is refused, what the harness can tell for itself an engine cannot deny, and what
follows from a declaration is held against the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import lcm

from cachewitness.core.events import Header, Pool
from cachewitness.core.malformed import MalformedHistory, at_least_nothing
from cachewitness.core.page_bound import longest_held
from cachewitness.core.trace_format import TraceHeader

STEPS_MAX, DRAFTS_MAX = 1024, 64
"""The most `progress_steps` and `drafts` that a header may declare; beyond them nothing is left to
be judged."""
PAGES_FACTOR, PAGES_BESIDE = 64, 4096
"""A pool has at most 64 times the pages that the trace gives, and 4,096 more; what a
trace fills is far less."""
ALIGNMENT_FACTOR = 8
"""Hits are multiples of at most so many times what the block sizes have in common; beyond it hardly
a prompt is owed one."""
ALWAYS = (
    *("safety-law", "ownership", "identity", "window-liveness", "content-floor", "answers"),
    "progress",
)
"""Rules that no engine can declare not applicable: where they have nothing to judge, the harness
sees that for itself. Of `identity` an engine may that has nothing beside tokens."""
OF_KEYS = ("commit-order", "reuse-floor", "replay-boundary-retained")
"""Rules that do not apply where there are no keys, and only there."""
OF_STATES, OF_INTERVAL = "no-fabricated-snapshots", "interval-sparsity"
DENIABLE: Mapping[str, Callable[[Header], bool]] = {
    **dict.fromkeys(OF_KEYS[:2], lambda header: _keyed(header)),
    "keys": lambda header: _keyed(header) and not header.rules.late_keys,
    OF_KEYS[2]: lambda header: _keyed(header) and not header.rules.late_keys,
    OF_STATES: lambda header: header.rules.caching and _recurrent(header),
    OF_INTERVAL: lambda header: _keyed(header) and _thins_out(header),
    "captures": lambda header: header.rules.caching and header.rules.captures is not None,
    "eviction": lambda header: (
        header.rules.caching and any(pool.eviction is not None for pool in header.pools)
    ),
    "key-events": lambda header: header.rules.key_events is not None,
    "statistics": lambda header: header.rules.stats,
}
"""Rules that an engine may declare not applicable, and when each applies all the same by what else
the engine declares. Who denies one then is named, and was not checked unless that is expected."""
LENGTH, BATCH = "max_model_len", "max_num_batched_tokens"
"""The options of a trace that bound a request and a step, in tokens."""
PROMPT_FACTOR = 2
"""A prompt may be shorter by no more than this factor than what the trace asks for and the pools
hold."""
INTERVAL = "retention_interval"
"""The option of a trace that says in how many tokens one state is kept; null: each."""
IDENTITY = ("salt", "adapter", "media")
"""The capabilities without which nobody has an identity beside the tokens."""


def _keyed(header: Header) -> bool:
    return header.rules.caching and header.rules.captures is None


def _recurrent(header: Header) -> bool:
    return any(group.kind == "recurrent" for group in header.local_groups())


def _thins_out(header: Header) -> bool:
    retention = header.rules.retention
    return retention.interval is not None and bool(retention.groups)


def applies_all_the_same(header: Header, rule: str) -> bool:
    """Whether an engine declares a rule not applicable that applies by what else it declares."""
    return (
        header.level != "answers"
        and bool(header.not_applicable.get(rule))
        and rule in DENIABLE
        and DENIABLE[rule](header)
    )


def check_declared(header: Header) -> None:
    """Raise MalformedHistory if a header says what no cache can be, or denies a rule that applies
    to every cache.
    """
    for field in ("engine", "engine_version", "trace"):
        _check_line(getattr(header, field), field)
    for rule, why in header.not_applicable.items():
        _check_line(rule, "not_applicable")
        _check_line(why, "not_applicable")
        if rule in ALWAYS and not (
            rule == "identity" and not set(IDENTITY).intersection(header.capabilities)
        ):
            raise MalformedHistory(f"{rule!r} - at `$.not_applicable`; it applies to every cache")
    for capability in header.capabilities:
        _check_line(capability, "capabilities")
    _check_rules(header)
    for pool in header.pools:
        _check_line(pool.tier, "pools")
        _check_pool(pool)


def _check_line(text: str, field: str) -> None:
    if not text.isprintable():
        raise MalformedHistory(f"{text!r} - at `$.{field}`; write one line of printable characters")


def _check_rules(header: Header) -> None:
    # What an engine declares excuses it, so a value that no engine can mean is refused here:
    # otherwise a checker would be switched off by nonsense.
    rules = header.rules
    interval = rules.retention.interval
    if (
        rules.alignment < 1
        or rules.eagle_drop_tokens < 0
        or (interval is not None and interval < 0)
    ):
        raise MalformedHistory(
            "less than it can be - at `$.rules`; alignment is at least 1, eagle_drop_tokens and"
            " interval at least 0"
        )
    if not all(0 <= group < len(header.groups) for group in rules.retention.groups):
        raise MalformedHistory(
            f"groups {rules.retention.groups} - at `$.rules.retention`; one of them does not exist"
        )
    for group in rules.retention.groups:
        if header.groups[group].kind == "full":
            whole = "of full attention every block is needed, and none is left out by retention"
            raise MalformedHistory(f"group {group} - at `$.rules.retention.groups`; {whole}")
    if rules.captures is not None and all(pool.tier == "local" for pool in header.pools):
        raise MalformedHistory(
            "no pool of another tier - at `$.pools`; captures (`$.rules.captures`) lie in one"
        )
    if rules.clients and not rules.stats:
        raise MalformedHistory(
            "clients without stats - at `$.rules.clients`; what clients are told comes with what"
            " operators are"
        )
    if not 1 <= rules.progress_steps <= STEPS_MAX:
        raise MalformedHistory(
            f"{rules.progress_steps} - at `$.rules.progress_steps`; it is 1 to {STEPS_MAX}"
        )
    if not 0 <= rules.drafts <= DRAFTS_MAX:
        raise MalformedHistory(f"{rules.drafts} - at `$.rules.drafts`; it is 0 to {DRAFTS_MAX}")
    at_least_nothing(rules.max_prompt, "rules.max_prompt")
    least = (
        min(pool.pages for pool in header.pools if pool.tier == "local")
        if header.local_groups()
        else 0
    )
    if not 0 <= rules.reserved_pages < max(least, 1):
        raise MalformedHistory(
            f"{rules.reserved_pages} - at `$.rules.reserved_pages`; the smallest pool has {least}"
            " pages"
        )


def _check_pool(pool: Pool) -> None:
    if pool.eviction is not None and not 0 < pool.eviction.watermark <= 1:
        raise MalformedHistory(
            f"{pool.eviction.watermark} of pool {pool.id} - at `$.pools`; a watermark is above 0,"
            " and 1 at most"
        )
    if pool.eviction is not None and pool.eviction.asks < 0:
        raise MalformedHistory(
            f"{pool.eviction.asks} of pool {pool.id} - at `$.pools`; `asks` is 0 or more"
        )


def denied(header: Header) -> dict[int, str]:
    """Return by group why it has no key at all, in words that follow "the header says"."""
    rules = header.rules
    not_applicable = header.not_applicable
    without = next(
        (f"that {rule!r} is not applicable" for rule in OF_KEYS if rule in not_applicable), ""
    )
    found = {group.id: without for group in header.groups} if without else {}
    if not rules.caching:
        # What the device does not keep another tier may.
        found |= {group.id: "`caching` false" for group in header.local_groups()}
    for group in header.groups:
        if group.kind == "recurrent" and OF_STATES in not_applicable:
            found.setdefault(group.id, f"that {OF_STATES!r} is not applicable")
        if (
            rules.retention.interval is not None
            and group.id in rules.retention.groups
            and OF_INTERVAL in not_applicable
        ):
            found.setdefault(group.id, f"that {OF_INTERVAL!r} is not applicable")
    return found


def check_fit(header: Header, trace: TraceHeader) -> None:
    """Raise MalformedHistory unless the engine that describes itself so is one for this trace.

    It has groups of the layout's kinds and no others, though it may merge those that are alike. Its
    narrowest window and chunk are no smaller than the layout's, and it forgets of answers what the
    trace's options allow. Its hits are not much coarser than blocks, and it keeps states as densely
    as the trace asks.
    """
    if header.level == "answers":
        return
    groups = header.local_groups()
    wanted = trace.layout.groups
    kinds = sorted({group.kind for group in groups})
    asked = sorted({spec.kind for spec in wanted})
    if kinds != asked:
        raise MalformedHistory(
            f"{', '.join(kinds)} - at `$.groups`; the trace's layout has {', '.join(asked)}"
        )
    windows = _least(group.window for group in groups), _least(spec.window for spec in wanted)
    chunks = _least(group.chunk for group in groups), _least(spec.chunk for spec in wanted)
    # With many more pages than the trace gives, no key ever ends for want of room, and what is
    # wrong with eviction would not show.
    most = PAGES_FACTOR * trace.pages + PAGES_BESIDE
    for pool in header.pools:
        if pool.pages > most:
            pool_size = (
                f"{pool.pages:,} pages of pool {pool.id} - at `$.pools`; the trace gives the engine"
                f" {trace.pages:,}"
            )
            raise MalformedHistory(f"{pool_size}, of which no more than {most:,} can be made")
    asked_for = trace.options.get("rswa_window", 0)
    for group in groups:
        if group.answer_window not in (0, asked_for):
            raise MalformedHistory(
                f"answer_window {group.answer_window} - at `$.groups`; the trace's option"
                f" rswa_window is {asked_for}"
            )
    # A narrower window needs less than the model does: reads would be right by declaration.
    for field, (span, least) in (("window", windows), ("chunk", chunks)):
        if span < least:
            raise MalformedHistory(
                f"{field} {span} - at `$.groups`; the narrowest of the trace's layout is {least}"
            )
    _check_alignment(header, trace)
    _check_retention(header, trace)
    _check_max_prompt(header, trace)


def _check_max_prompt(header: Header, trace: TraceHeader) -> None:
    """Refuse prompts that are shorter by far than those of the length that the trace asks for, of
    which the pools have room: whatever is longer could be given up.
    """
    asked = trace.options.get(LENGTH)
    most = header.rules.max_prompt
    if not isinstance(asked, int) or not most:
        return
    batch = trace.options.get(BATCH)
    limit = min(asked - 1, batch) if isinstance(batch, int) else asked - 1
    held = longest_held(header, limit)
    if PROMPT_FACTOR * most < held:
        raise MalformedHistory(
            f"{most} - at `$.rules.max_prompt`; the trace's option {LENGTH} is {asked}, and the"
            f" pools have room for prompts of {held} tokens"
        )


def _check_alignment(header: Header, trace: TraceHeader) -> None:
    """Refuse hits that are coarser by far than blocks are: an engine that never hits would owe
    nothing.
    """
    attention = [group.block_size for group in header.local_groups() if group.kind != "recurrent"]
    common = max(lcm(*attention), lcm(*(spec.block_size for spec in trace.layout.groups)))
    if header.rules.caching and header.rules.alignment > ALIGNMENT_FACTOR * common:
        raise MalformedHistory(
            f"{header.rules.alignment} - at `$.rules.alignment`; all blocks end together every"
            f" {common} tokens, and hits are multiples of {ALIGNMENT_FACTOR * common} tokens at"
            " most"
        )


def _check_retention(header: Header, trace: TraceHeader) -> None:
    """Refuse another retention interval than the trace asks for; one that does not, or has
    nothing to prune, leaves it open.
    """
    interval = header.rules.retention.interval
    asked = trace.options.get(INTERVAL, "")
    pruned = any(group.kind != "full" for group in header.local_groups())
    if pruned and (asked is None or isinstance(asked, int)) and interval != asked:
        values = ["null" if one is None else one for one in (interval, asked)]
        raise MalformedHistory(
            f"{values[0]} - at `$.rules.retention.interval`; the trace's option {INTERVAL} is"
            f" {values[1]}"
        )


def _least(spans: Iterable[int]) -> int:
    """Return the smallest of those that are given; 0 if none is."""
    return min((span for span in spans if span), default=0)
