"""Writes a failing trace as a test for vLLM's own test suite, from what happened.

Two kinds of failure can be told to somebody who has vLLM alone: a request reads what was not
computed from its tokens, and a request hits less than it could. Everything else is refused with the
reason.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import fill, indent

from cachewitness._util.errors import UsageError
from cachewitness._util.lines import printable
from cachewitness._util.names import identifier
from cachewitness.core.events import (
    Aborted,
    Accept,
    Event,
    Finished,
    History,
    Preempted,
    Read,
    ResetDone,
    StepBegin,
    Submitted,
    Version,
)
from cachewitness.core.trace_format import Step, Trace, TraceHeader
from cachewitness.engines.export import Exported, Failed
from cachewitness.systems.vllm.as_test import text
from cachewitness.systems.vllm.as_test.construct import CHECKPOINTS, built
from cachewitness.systems.vllm.source import load
from cachewitness_reference.vllm_extended.config import Options

READS = (
    "aliased-write",
    "cross-identity-hit",
    "fabricated-snapshot",
    "group-misalignment",
    "premature-release",
    "stale-hit",
    "state-position-skew",
    "uncommitted-hit",
    "use-after-free",
    "window-hole",
)
"""The anomalies that show in what a request reads."""
STATES = "fabricated-snapshot"
"""What is found when a state is keyed, and shows in the first request behind that goes on from it.
"""
HITS = ("lost-hit", "lost-replay-boundary")
"""The anomalies that show in how much a request hits."""
SAYS = {READS: r"computed from ", HITS: r" hits \d+ tokens"}
"""What the assertions of `text` say of them."""
PLAIN = re.compile(r"[\w.:+@-]+", re.ASCII)
"""Names of requests that are written into a test: a trace is anybody's, and the test is run."""
WIDTH = 118


NOT_WRITTEN = {
    "hisparse": "with HiSparse's two pools",
    "context_parallel": "over several ranks",
}
"""Options of the engine that an exported test does not spell out."""


def as_test(trace: Trace, history: History, failed: Failed, options: Mapping[str, str]) -> Exported:
    """Return a test file that fails as the trace does, with the vLLM that `options` names.

    Raises UsageError if such a test cannot be written.
    """
    if failed.anomaly not in READS + HITS:
        raise UsageError(
            f"--export pytest: {failed.anomaly} is neither a wrong read nor a lost hit; attach the"
            " trace instead"
        )
    if "mutant" in options:
        raise UsageError(
            "--export pytest: the fault is patched in, so a test of vLLM alone would pass; leave"
            " out mutant="
        )
    for option, over in NOT_WRITTEN.items():
        if option in options:
            raise UsageError(
                f"--export pytest: a test {over} is not written; attach the trace instead"
            )
    if package := options.get("package", ""):
        raise UsageError(
            f"--export pytest: a test on the package {package} is not written; attach the trace"
            " instead"
        )
    source = load(options.get("source", ""))
    header = trace.header
    at = next((event for event in history.events if event.seq == failed.seq), None)
    until = failed if failed.anomaly != STATES or isinstance(at, Read) else failed._replace(seq=-1)
    parts = built(header, source)
    calls = _Calls(trace, history, until)
    story = text.HEAD.format(
        story=_story(header, failed), anomaly=failed.anomaly, version=source.version
    )
    content = [text.MEMORY] if failed.anomaly in READS else []
    body = "\n\n\n".join(
        [
            "\n".join([*parts.constants, *_layers(header, failed), *content]),
            *(function.rstrip() for function in _functions(header, history, failed, calls)),
            f"def test_{identifier(header.name)}():\n"
            + indent("\n".join([*parts.objects, *calls.lines()]), "    "),
        ]
    )
    body = body if calls.identified else re.sub(r"known\(r, ([^()]+)\)", _tokens, body)
    head = [
        fill(f'"""{story}"""', WIDTH),
        "",
        *_imports(["from collections import defaultdict", *parts.imports], body),
        "",
    ]
    whole = "\n".join([*head, body])
    says = next(pattern for anomalies, pattern in SAYS.items() if failed.anomaly in anomalies)
    return Exported(whole + "\n", options.get("source", ""), says)


def _story(header: TraceHeader, failed: Failed) -> str:
    """Return what the trace says of itself, as a sentence that may stand in a docstring."""
    story = (
        printable(header.story or f"{failed.anomaly} of {failed.r}")
        .replace("\\", "/")
        .replace('"', "'")
    )
    return (story if story.startswith("vLLM") else story[0].upper() + story[1:]).rstrip(".") + "."


def _tokens(known: re.Match[str]) -> str:
    """Return the tokens of a request up to a place, as a formatter spells them."""
    return f"r.all_token_ids[{': ' if ' ' in known[1] else ':'}{known[1]}]"


def _imports(lines: Sequence[str], body: str) -> Iterator[str]:
    """Yield the imports of what the body names, the standard library's apart from the others."""
    used = [line for line in (_used(line, body) for line in lines) if line]
    own = [line for line in used if line.split()[1] in sys.stdlib_module_names]
    yield from (*own, "") if own else ()
    yield from (line for line in used if line not in own)


def _used(line: str, body: str) -> str:
    """Return an import of those of its names that the body has; empty if it has none."""
    module, _, names = line.rpartition("import ")
    kept = [name for name in names.split(", ") if re.search(rf"\b{name}\b", body)]
    return f"{module}import {', '.join(kept)}" if kept else ""


def _functions(
    header: TraceHeader, history: History, failed: Failed, calls: _Calls
) -> Iterator[str]:
    """Yield the functions of a test: what makes a step, with the worker in it if what is read is
    judged.
    """
    begin = text.MANAGER_STEP
    end = text.MANAGER_END
    if header.level == "scheduler":
        scheduled = text.SCHEDULED_AND_READ if failed.anomaly in READS else text.SCHEDULED
        begin = text.SCHEDULER_STEP + scheduled + text.SCHEDULER_RUNS
        end = text.SCHEDULER_END
    if failed.anomaly != "lost-hit":
        begin = "".join(
            line
            for line in begin.replace(", owed=()", "").splitlines(keepends=True)
            if "owed" not in line
        )
    if not calls.budgets:
        begin = "".join(
            line
            for line in begin.replace(", budget):", "):").splitlines(keepends=True)
            if "budget" not in line
        )
    if calls.identified:
        yield text.IDENTIFIED
    yield begin + (_worker(header, history, failed) if failed.anomaly in READS else "") + end
    if calls.preempts:
        yield text.PREEMPT


def _worker(header: TraceHeader, history: History, failed: Failed) -> str:
    """Return what the worker does with the group whose read failed. Raises UsageError if the
    failure names none.
    """
    group = next(
        (
            event.group
            for event in history.events
            if event.seq == failed.seq and isinstance(event, Read)
        ),
        None,
    )
    if group is None and failed.anomaly == STATES:
        group = next(
            index for index, group in enumerate(header.layout.groups) if group.kind == "recurrent"
        )
    if group is None:
        raise UsageError(
            f"--export pytest: {failed.anomaly} was seen before anything was read; attach the trace"
            " instead"
        )
    spec = header.layout.groups[group]
    first = f"max(0, start + 1 - {spec.window})" if spec.window else "0"
    lines = text.COPY + (text.STATES if spec.kind == "recurrent" else text.KEYS)
    lines = lines.format(g=group, size=spec.block_size, first=first).replace(
        "range(0, stop)", "range(stop)"
    )
    saves = spec.kind == "recurrent" and header.options.get(CHECKPOINTS)
    return lines + (text.CHECKPOINTS if saves else "")


def _layers(header: TraceHeader, failed: Failed) -> Iterator[str]:
    """Yield what vLLM's layers are asked with for the states that they save on their way, if
    they save any.
    """
    aligned = header.options.get(CHECKPOINTS)
    if aligned and failed.anomaly in READS:
        size = next(group.block_size for group in header.layout.groups if group.kind == "recurrent")
        yield text.LAYERS.format(
            unit=header.options.get("hash_block_size") or size, size=size, aligned=aligned
        )


class _Calls:
    """The calls that a history was made of, line by line."""

    def __init__(self, trace: Trace, history: History, failed: Failed) -> None:
        self._trace = trace
        self._failed = failed
        self._events = _until(history.events, failed.seq)
        self._numbers: dict[int, int] = {}
        self._names: dict[str, str] = {}
        self._tokens: dict[str, list[int]] = {}
        submitted = [event for event in self._events if isinstance(event, Submitted)]
        self.identified = any(event.salt or event.adapter for event in submitted)
        own = {name: value for name, value in trace.header.options.items() if name != CHECKPOINTS}
        self._limit = Options.parse(own).max_num_batched_tokens
        self._scheduled = trace.header.level == "scheduler"
        limits = {op.budget or self._limit for op in trace.ops if isinstance(op, Step)}
        self.budgets = limits != {self._limit}
        self.preempts = not self._scheduled and any(
            isinstance(event, Preempted) for event in self._events
        )

    def lines(self) -> list[str]:
        """Return the calls. Raises UsageError for an event that cannot be brought about by a
        call.
        """
        budgets = iter([op.budget for op in self._trace.ops if isinstance(op, Step)])
        lines = [line for event in self._events for line in self._line(event, budgets)]
        texts = [f"texts = {self._texts()}"] if self._scheduled else []
        return [*texts, *lines, *self._replay()]

    def _line(self, event: Event, budgets: Iterator[int]) -> Iterable[str]:
        match event:
            case Submitted():
                yield from self._submit(event)
            case StepBegin():
                yield self._step(event, next(budgets, 0))
            case Accept() if not self._scheduled:
                for token in event.tokens:
                    yield f"{self._names[event.r]}.append_output_token_ids({self._number(token)})"
            case Finished() | Aborted():
                if self._scheduled:
                    yield f'engine.finish_requests("{event.r}", RequestStatus.FINISHED_ABORTED)'
                else:
                    yield f"manager.free({self._names[event.r]})"
            case Preempted() if not self._scheduled:
                yield f"preempt(manager, {self._names[event.r]})"
            case ResetDone() | Version():
                yield f"assert {'engine' if self._scheduled else 'manager'}.reset_prefix_cache()"

    def _submit(self, event: Submitted) -> Iterable[str]:
        if event.media or event.session:
            what = "images are" if event.media else "a session is"
            raise UsageError(
                f"--export pytest: {what} not spelled out in a test; attach the trace instead"
            )
        if not PLAIN.fullmatch(event.r):
            raise UsageError(
                f"--export pytest: a request called {event.r!r} is not spelled out in a test;"
                " rename it in the trace"
            )
        name = (
            event.r
            if event.r.isidentifier() and not keyword.iskeyword(event.r)
            else f"request_{len(self._names)}"
        )
        self._names[event.r] = name
        self._tokens[event.r] = event.tokens
        salt = f", cache_salt={event.salt!r}" if event.salt else ""
        adapter = (
            f", lora_request=LoRARequest({event.adapter!r}, 1, {event.adapter!r})"
            if event.adapter
            else ""
        )
        if adapter:
            yield "from vllm.lora.request import LoRARequest"
        made = f'Request("{event.r}", {self._spelled(event.tokens)}, **ASKED{salt}{adapter})'
        yield f"engine.add_request({made})" if self._scheduled else f"{name} = {made}"

    def _step(self, event: StepBegin, budget: int) -> str:
        if self._scheduled:
            return (
                f"step(engine, texts, {budget or self._limit})"
                if self.budgets
                else "step(engine, texts)"
            )
        chunks = [f"({self._names[run.r]}, {run.stop - run.start})" for run in event.runs]
        failed = self._failed
        owed = (
            f", owed={{{failed.r!r}: {failed.owed}}}"
            if failed.anomaly == "lost-hit" and self._is_last(event)
            else ""
        )
        return f"step(manager, {', '.join(chunks)}{owed})"

    def _is_last(self, event: StepBegin) -> bool:
        return not any(
            isinstance(other, StepBegin) and other.seq > event.seq for other in self._events
        )

    def _replay(self) -> list[str]:
        """Return the look-up of a request that repeats a prompt whose boundary was not kept."""
        failed = self._failed
        if failed.anomaly != "lost-replay-boundary":
            return []
        manager = "engine.kv_cache_manager" if self._scheduled else "manager"
        return [
            f"{manager}.new_step_starts()",
            (
                f'_, hit, _ = {manager}.get_computed_blocks(Request("replay",'
                f" {self._spelled(self._tokens[failed.r])}, **ASKED))"
            ),
            f'assert hit >= {failed.owed}, f"a replay of {failed.r} hits {{hit}} tokens"',
        ]

    def _texts(self) -> str:
        """Return what each request generates."""
        made: dict[str, list[int]] = {
            event.r: [] for event in self._events if isinstance(event, Submitted)
        }
        for event in self._events:
            if isinstance(event, Accept):
                made[event.r] += event.tokens
        return (
            "{" + ", ".join(f'"{r}": {self._spelled(tokens)}' for r, tokens in made.items()) + "}"
        )

    def _number(self, token: int) -> int:
        """Return a small number for a token, the same for the same."""
        return self._numbers.setdefault(token, len(self._numbers))

    def _spelled(self, tokens: Sequence[int]) -> str:
        """Return a list of tokens, runs of consecutive ones as ranges."""
        numbers = [self._number(token) for token in tokens]
        runs = [
            [number for _, number in run]
            for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
        ]
        parts = [
            f"*range({run[0]}, {run[-1] + 1})" if len(run) > 2 else ", ".join(map(str, run))
            for run in runs
        ]
        return f"[{', '.join(parts)}]".replace("range(0, ", "range(")


def _until(events: Sequence[Event], seq: int) -> list[Event]:
    """Return the events up to a number, and from there to the begin of the step that they belong
    to.
    """
    last = next(
        (event for event in events if event.seq >= seq and isinstance(event, StepBegin)), None
    )
    failed = next((event for event in events if event.seq == seq), None)
    if failed is None or last is None or last.step != failed.step:
        return [event for event in events if seq < 0 or event.seq <= seq]
    return [event for event in events if event.seq <= last.seq]
