"""The types of vectors. A file of vectors is a document of one kind; its JSON schema is made from
these.

Lengths, positions and block sizes are in tokens, columns and pages are counted in blocks, sizes of
memory in bytes. A column is the index of a block in a request's table. A prefix is named by its
length, since a vector is about one sequence of tokens unless a trace says otherwise.

Numbers are integers of 64 bits at most, without a sign where they are larger than 63, but for
shares of a whole.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from cachewitness.core.trace_format import GroupSpec, Op, TraceHeader

FORMAT = "cachewitness.vectors"
VERSION = 3

ResultClass = Literal["valid", "acceptable", "invalid"]
Kind = Literal["sizing", "lookup", "retention", "split", "lifecycle", "compaction"]


class Source(msgspec.Struct, frozen=True):
    """Where the rules were read: a repository or a document, and the release of it."""

    repository: str
    release: str


class Info(msgspec.Struct, frozen=True):
    """What a file is. `hash` is over its flags and vectors
    (`cachewitness.vectors.store.content_hash`).
    """

    kind: Kind
    policy: str
    count: int
    hash: str
    tool: str
    source: Source
    format: str = FORMAT
    version: int = VERSION


class Flag(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bug that a vector hunts, and where one like it was seen."""

    bug: str
    source: str = ""


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an invalid input is refused: the message names the field, by one of these names.

    `text`: the system's own words, which the message contains, where they are known.
    """

    names: list[str]
    text: str = ""


class _Vector(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    id: str
    comment: str
    flags: list[str]
    result: ResultClass
    refusal: Refusal | None = None


# --- sizing ---------------------------------------------------------------------------------------


class SizingInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """A configuration in the system's own terms; `groups` are the cache groups where the system
    has them.
    """

    config: dict[str, Any]
    groups: list[GroupSpec] = []


class SizingExpected(msgspec.Struct, frozen=True):
    """What follows from it, by name."""

    values: dict[str, Any]


class SizingVector(_Vector, frozen=True, omit_defaults=True, kw_only=True):
    """Asks how large everything is, and whether the configuration is accepted."""

    input: SizingInput
    expected: SizingExpected | None = None


# --- lookup ---------------------------------------------------------------------------------------


class LookupInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of `tokens` tokens, and what each group has cached of exactly this sequence:
    prefixes, by length.
    """

    groups: list[GroupSpec]
    tokens: int
    cached: list[list[int]]
    config: dict[str, Any] = {}


class LookupExpected(msgspec.Struct, frozen=True, omit_defaults=True):
    """Computing starts at `resume`. `shared_prefix_boundary`: a prefix shared with others goes on
    to there (0: it does not).

    `columns`, by group: which columns of the table are filled from the cache (the others are null).
    `legal`, of an acceptable vector: every length at which the safety law lets an engine resume.
    """

    resume: int
    shared_prefix_boundary: int = 0
    columns: list[list[int]] = []
    legal: list[int] = []


class LookupVector(_Vector, frozen=True, omit_defaults=True, kw_only=True):
    """Asks how much of a request is cached."""

    input: LookupInput
    expected: LookupExpected | None = None


# --- retention ------------------------------------------------------------------------------------


class RetentionInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns [first, stop) of one of the groups, written by a request that computed `tokens`
    tokens.

    `reachable` are positions at which a later request can resume.
    """

    groups: list[GroupSpec]
    group: int
    first: int
    stop: int
    tokens: int = 0
    reachable: list[int] = []
    config: dict[str, Any] = {}


class RetentionExpected(msgspec.Struct, frozen=True):
    """The columns that are kept, in ascending order; the others lose what they hold."""

    kept: list[int]


class RetentionVector(_Vector, frozen=True, omit_defaults=True, kw_only=True):
    """Asks which blocks are kept."""

    input: RetentionInput
    expected: RetentionExpected | None = None


# --- split ----------------------------------------------------------------------------------------


class SplitInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request whose prompt has `prompt` tokens, of `known` in all, has computed `start`, and
    is offered `asked` more.
    """

    start: int
    asked: int
    prompt: int
    known: int
    groups: list[GroupSpec] = []
    shared_prefix_boundary: int = 0
    config: dict[str, Any] = {}


class SplitExpected(msgspec.Struct, frozen=True):
    """How many it computes in this step; 0 puts it off."""

    tokens: int


class SplitVector(_Vector, frozen=True, omit_defaults=True, kw_only=True):
    """Asks where the chunk ends."""

    input: SplitInput
    expected: SplitExpected | None = None


# --- lifecycle ------------------------------------------------------------------------------------


class LifecycleInput(msgspec.Struct, frozen=True):
    """A trace: its header, and its operations in order."""

    header: TraceHeader
    ops: list[Op]


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What must be equal after operation number `op`, counted from 0; what is left out is empty.

    `hits` [request, reported, resume] · `runs` [request, start, stop] · `preempted` requests ·
    `published` and `unpublished` [group, request, length] · `counts` [pool, free, held, cached],
    the last of the operation · `resets`, whether each was done. All but the resets are sorted: an
    operation is a set of what happened in it.
    """

    op: int
    hits: list[tuple[str, int, int]] = []
    runs: list[tuple[str, int, int]] = []
    preempted: list[str] = []
    published: list[tuple[int, str, int]] = []
    unpublished: list[tuple[int, str, int]] = []
    counts: list[tuple[int, int, int, int]] = []
    resets: list[bool] = []


class LifecycleExpected(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of every operation that has some. From operation `free_from` on a free choice of
    the engine's may show.
    """

    facts: list[Facts]
    free_from: int | None = None
    free: list[str] = []


class LifecycleVector(_Vector, frozen=True, omit_defaults=True, kw_only=True):
    """Asks what happens."""

    input: LifecycleInput
    expected: LifecycleExpected | None = None


# --- compaction -----------------------------------------------------------------------------------


class CompactionInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows with these lengths; row i goes to row `mapping[i]`, or nowhere (−1). `new_batch` rows
    are active afterwards.
    """

    max_batch: int
    lengths: list[int]
    mapping: list[int]
    new_batch: int
    config: dict[str, Any] = {}


class CompactionExpected(msgspec.Struct, frozen=True):
    """For each row that is active afterwards: of which row it now has the keys and values, of
    which the states, its length.
    """

    kv_rows: list[int]
    state_rows: list[int]
    lengths: list[int]


class CompactionVector(_Vector, frozen=True, omit_defaults=True, kw_only=True):
    """Asks where every row goes."""

    input: CompactionInput
    expected: CompactionExpected | None = None


# --- files ----------------------------------------------------------------------------------------


class _File(msgspec.Struct, frozen=True, kw_only=True):
    info: Info = msgspec.field(name="_info")
    flags: dict[str, Flag]


class SizingFile(_File, frozen=True, kw_only=True):
    """Vectors of sizing."""

    vectors: list[SizingVector]


class LookupFile(_File, frozen=True, kw_only=True):
    """Vectors of look-ups."""

    vectors: list[LookupVector]


class RetentionFile(_File, frozen=True, kw_only=True):
    """Vectors of retention."""

    vectors: list[RetentionVector]


class SplitFile(_File, frozen=True, kw_only=True):
    """Vectors of chunk ends."""

    vectors: list[SplitVector]


class LifecycleFile(_File, frozen=True, kw_only=True):
    """Vectors of whole lives."""

    vectors: list[LifecycleVector]


class CompactionFile(_File, frozen=True, kw_only=True):
    """Vectors of compaction."""

    vectors: list[CompactionVector]


Vector = (
    SizingVector | LookupVector | RetentionVector | SplitVector | LifecycleVector | CompactionVector
)
File = SizingFile | LookupFile | RetentionFile | SplitFile | LifecycleFile | CompactionFile

FILES: dict[str, type[File]] = {
    "sizing": SizingFile,
    "lookup": LookupFile,
    "retention": RetentionFile,
    "split": SplitFile,
    "lifecycle": LifecycleFile,
    "compaction": CompactionFile,
}
VECTORS: dict[str, type[Vector]] = {
    "sizing": SizingVector,
    "lookup": LookupVector,
    "retention": RetentionVector,
    "split": SplitVector,
    "lifecycle": LifecycleVector,
    "compaction": CompactionVector,
}
