"""What is asked of an engine: a trace, one operation a line.

A trace is data. Its first line names the layout, the pool and the options of the policy; every
further line is one semantic operation (submit, step, finish, ...). Nothing in a trace says how long
a hit is or which block is used: those are the engine's answers, and they belong to the history.

Prompts are written as segments, so that a person can read which requests share which tokens::

    {"op": "submit", "r": "r2", "prompt": "sys:64 @r1:20 u2:8"}

reads "the first 64 tokens of the text `sys`, then the first 20 tokens that r1 generated, then 8
tokens of `u2`". A segment may start later (`sys[16]:8` is tokens 16 to 23). Every request samples
from a text of its own, `@r`, unless `stream` names another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from cachewitness._util import files, jsonl
from cachewitness._util.errors import UsageError
from cachewitness._util.lines import shortened

FORMAT = "cachewitness.trace"
VERSION = 3

Level = Literal["manager", "scheduler", "answers"]
GroupKind = Literal["full", "sliding", "chunked", "recurrent"]
ResetTier = Literal["", "local", "cpu"]
"""The tier that a reset is of; empty: all of them."""
COMPARE = "compare"
"""The capability of an engine that computes, and puts its logits beside those of a cold run."""


class GroupSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One cache group of a layout: the layers that share a block table.

    `block_size` is in tokens; `window` (sliding) counts the query itself; `chunk` (chunked-local)
    is in tokens. `token_bytes` are a token's keys and values in one layer, `state_bytes` a
    sequence's recurrent state in one; 0 if nothing is said of them.
    """

    kind: GroupKind
    block_size: int
    window: int = 0
    chunk: int = 0
    layers: int = 1
    token_bytes: int = 0
    state_bytes: int = 0


class Layout(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cache groups of a model, in the order in which an engine allocates them."""

    name: str
    groups: list[GroupSpec]
    story: str = ""
    source: str = ""


class Media(msgspec.Struct, frozen=True):
    """A multimodal item: placeholder tokens [at, at + length) carry the content called `hash`."""

    at: int
    length: int
    hash: str


class Submit(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="op",
    tag="submit",
    forbid_unknown_fields=True,
):
    """A new request. `salt`, `adapter`, `media` and `kernels` are the parts of its identity that
    are not tokens.

    `kernels` are the attention backend and the kernel block size of the engine that serves it, as
    in `flash:16`, where several engines share a second tier: what one of them stores, one with
    other kernels cannot read.

    Where a scheduler goes by priority, requests of a smaller `priority` come first. One whose
    output follows a `grammar` is not admitted until that is compiled, which takes so many steps (0:
    its output is free).

    At answers level the request ends by itself when it has generated `generate` tokens. `tokens`
    are then the ids of its prompt, which the harness fills in before the engine is asked; a stored
    trace has none.

    A `session`, at scheduler level, does not end with its answer of `generate` tokens: it keeps
    its pages and waits for more input (`extend`).

    With `prompt_logprobs` its client wants the log-probability of every token of the prompt. What
    is restored is not computed and has none, so such a request may restore nothing; others may
    restore what it computes.
    """

    r: str
    prompt: str
    stream: str = ""
    salt: str = ""
    adapter: str = ""
    media: list[Media] = []
    kernels: str = ""
    priority: int = 0
    grammar: int = 0
    generate: int = 0
    tokens: list[int] = []
    session: bool = False
    prompt_logprobs: bool = False


class Extend(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="op",
    tag="extend",
    forbid_unknown_fields=True,
):
    """More input for a session, after which it generates `generate` tokens. While its answer
    goes on the input waits.
    """

    r: str
    prompt: str
    generate: int


class Step(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="op",
    tag="step",
    forbid_unknown_fields=True,
):
    """One engine step.

    At manager level `run` says which requests compute how many tokens; at scheduler level the
    engine's scheduler decides within `budget` tokens (0: its own limit). Requests in `withdraw` are
    scheduled with the others and taken back before anything runs. The clients of requests in
    `cancel` go away when the step was scheduled and has not run. At answers level the engine does
    what it calls a step.

    Where copies from and to another tier take time, `fail` says which of them fail with this step:
    places among those under way and those that begin with the step, counted from 0, loads in front
    of stores, each as they began.
    """

    run: list[tuple[str, int]] = []
    budget: int = 0
    withdraw: list[str] = []
    cancel: list[str] = []
    fail: list[int] = []


class Finish(msgspec.Struct, frozen=True, tag_field="op", tag="finish", forbid_unknown_fields=True):
    """The request ends as intended; what it computed may be reused."""

    r: str


class Abort(msgspec.Struct, frozen=True, tag_field="op", tag="abort", forbid_unknown_fields=True):
    """The client went away."""

    r: str


class Preempt(
    msgspec.Struct, frozen=True, tag_field="op", tag="preempt", forbid_unknown_fields=True
):
    """The request gives up its blocks and computes again later, what it generated included."""

    r: str


class Reset(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="op",
    tag="reset",
    forbid_unknown_fields=True,
):
    """Forget every cached prefix, of one `tier` or of all of them; with `running`, preempt
    running requests first.
    """

    running: bool = False
    tier: ResetTier = ""


class UpdateWeights(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="op",
    tag="update_weights",
    forbid_unknown_fields=True,
):
    """New weights, of the model or of one adapter: whatever was computed with the old ones
    answers for another model.
    """

    version: int
    adapter: str = ""


Op = Submit | Extend | Step | Finish | Abort | Preempt | Reset | UpdateWeights


class TraceHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a trace: what the engine is built from.

    `pages` is the number of blocks in the pool, the null block included; `options` are the policy's
    own (retention interval, hash block size, ...), checked by the policy that reads them. `needs`
    names capabilities without which the trace is not run.
    """

    name: str
    layout: Layout
    pages: int
    level: Level = "manager"
    policy: str = "vllm"
    options: dict[str, Any] = {}
    needs: list[str] = []
    story: str = ""
    source: str = ""
    seed: int | None = None
    format: str = FORMAT
    version: int = VERSION


class Trace(msgspec.Struct, frozen=True):
    """A header and its operations."""

    header: TraceHeader
    ops: list[Op]

    def with_ops(self, ops: Iterable[Op]) -> Trace:
        """Return the same trace with other operations."""
        return Trace(self.header, list(ops))


_SEGMENT = re.compile(r"^(?P<name>[^\s:\[\]]+)(\[(?P<start>[0-9]+)\])?:(?P<count>[0-9]+)$")
_DIGITS_MAX = 9
SEGMENT_TOKENS_MAX = 1 << 16
PROMPT_TOKENS_MAX = 1 << 22
TRACE_TOKENS_MAX = 1 << 24
"""What one prompt, and all prompts and answers of a trace together, may have: a few letters stand
for many tokens."""


class Vocabulary:
    """Turns segments into token ids: text number k, position i becomes k · 65 536 + i. Texts are
    numbered as they appear.
    """

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}

    def token(self, text: str, position: int) -> int:
        """Return the id of one token of a text."""
        number = self._texts.setdefault(text, len(self._texts) + 1)
        return number * SEGMENT_TOKENS_MAX + position

    def tokens(self, prompt: str) -> list[int]:
        """Return the token ids of a prompt written as segments.

        Raises UsageError if a segment is malformed or longer than 65 536 tokens.
        """
        out: list[int] = []
        for name, start, count in segments(prompt):
            base = self.token(name, start)
            out.extend(range(base, base + count))
        return out


def segments(prompt: str) -> Iterator[tuple[str, int, int]]:
    """Yield the segments of a prompt: the name of a text, where the segment starts in it, and how
    many tokens it has.

    Raises UsageError if one is malformed or longer than 65 536 tokens.
    """
    for term in prompt.split():
        match = _SEGMENT.match(term)
        if match is None:
            raise UsageError(
                f"$.prompt: segment {shortened(term, 60)!r} is not of the form text:count or"
                " text[start]:count"
            )
        first = match["start"] or "0"
        many = match["count"]
        if max(len(first), len(many)) > _DIGITS_MAX or int(first) + int(many) > SEGMENT_TOKENS_MAX:
            raise UsageError(
                f"$.prompt: segment {shortened(term, 60)!r} reaches beyond {SEGMENT_TOKENS_MAX}"
                " tokens"
            )
        yield match["name"], int(first), int(many)


def _tokens_of(op: Op) -> int:
    """Return how many tokens an operation brings or asks for. Raises UsageError for a prompt
    that is malformed or too long.
    """
    if not isinstance(op, Submit | Extend):
        return sum(tokens for _, tokens in op.run) if isinstance(op, Step) else 0
    count = sum(count for _, _, count in segments(op.prompt))
    if max(count, op.generate) > PROMPT_TOKENS_MAX:
        where = "prompt" if count > PROMPT_TOKENS_MAX else "generate"
        raise UsageError(
            f"$.{where}: {max(count, op.generate):,} tokens; at most {PROMPT_TOKENS_MAX:,}"
        )
    return count + max(op.generate, 0)


def length_of(prompt: str) -> int:
    """Return how many tokens a well-formed prompt has."""
    return sum(int(term.rpartition(":")[2]) for term in prompt.split())


def dump(trace: Trace) -> bytes:
    """Return the trace as JSON lines."""
    encoder = msgspec.json.Encoder()
    return b"\n".join([encoder.encode(trace.header), *map(encoder.encode, trace.ops)]) + b"\n"


def save(trace: Trace, path: Path) -> None:
    """Write the trace to a file, all of it or nothing."""
    files.write(path, [dump(trace)])


def load(path: Path) -> Trace:
    """Read a trace.

    Raises UsageError naming the file, the line and the field if anything does not fit the format.
    """
    return parse(jsonl.read(path), str(path))


def parse(lines: list[bytes], where: str) -> Trace:
    """Read a trace from its lines; `where` names them in messages."""
    header = jsonl.header(lines, TraceHeader, where, "a trace")
    if not header.layout.groups:
        raise UsageError(f"{where}:1: $.layout.groups is empty; name at least one cache group")
    ops: list[Op] = []
    asked = 0
    for number, text in enumerate(lines[1:], start=2):
        if not text.strip():
            continue
        op = jsonl.decode(text, Op, where, number)
        try:
            asked += _tokens_of(op)
        except UsageError as error:
            raise UsageError(f"{where}:{number}: {error}") from None
        if asked > TRACE_TOKENS_MAX:
            raise UsageError(
                f"{where}:{number}: the trace has {asked:,} tokens until here; at most"
                f" {TRACE_TOKENS_MAX:,}"
            )
        ops.append(op)
    return Trace(header, ops)
