"""What happened: a history, one event a line, in total order.

Physical events say what happened to pages, claims what the engine states about them, life events
what happened to requests. A prefix is named by (r, length), the first `length` tokens of request r,
never by the engine's hash, so a radix node, a chunk key and a block hash are one thing here.

`read`, `write`, `copy` and `zero` are emitted by the harness's worker alone, from the tables that
`step_begin` hands out.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cachewitness.core.trace_format import GroupKind, Level, Media

FORMAT = "cachewitness.history"
VERSION = 3

Order = Literal["lru", "lru-used", "lru-leaves", "lru-restored", "random"]


class Eviction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the engine says of how keys of a pool end for want of room.

    `order` says who goes first, of pages that are kept for a key alone. `lru`: whose last holder
    let go longest ago, and of full attention's that a request let go together a longer prefix
    first. `lru-used`: who was used longest ago, where the engine counts a use at some time between
    the last take and the last release. `lru-leaves`: so too, and nobody before a longer prefix of
    its own. `lru-restored`: who was hit longest ago, or else handed out longest ago. `random`:
    anybody.

    `free_first`: pages without a key are handed out before any key ends; otherwise both wait in one
    queue, in which a page that was never taken is the oldest. `watermark`: the share of the pool in
    use from which keys end ahead of need; 1: never. `together`: a key goes when that of the same
    prefix in another pool does, and with it those of longer prefixes. `ttl`: a key may end without
    need when its page was not taken or keyed for so many steps; 0: it may not. `asks`: so many
    pages an operation asks for beyond what it takes, for each request that it runs and one more:
    keys end ahead of need only in one that asks for more pages of some pool than were free when it
    began, or takes a request's place; 0: it is not said.
    """

    order: Order
    free_first: bool = True
    watermark: float = 1.0
    together: bool = False
    ttl: int = 0
    asks: int = 0


class Pool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A set of physical pages. `null` pages are placeholders that nobody owns, writes or reads.

    `eviction` is how keys of its pages end for want of room; None: the engine does not say. A pool
    that `grows` begins with so many `pages`, perhaps none, and has more with each event `grow`.
    """

    id: int
    pages: int
    null: list[int] = []
    tier: str = "local"
    eviction: Eviction | None = None
    grows: bool = False


class Group(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cache group as the worker sees it.

    `block_size`, `window` (query included) and `chunk` are in tokens. A full group with an
    `answer_window` reads the whole prompt, and of the answer so many tokens (query included). A
    recurrent group writes its state at the end of a chunk (`chunk-end`) or at every block boundary
    that the chunk crosses as well (`every-block`). Where its device goes on from whatever the page
    holds, also at the beginning of a text, the page has to be zeroed for that (`cleared`). A group
    in a pool of another tier than `local` is never run: its keys name stored copies of the pages of
    the group `source_group`, where a hit may find them too (−1: the engine does not say of which).
    """

    id: int
    kind: GroupKind
    block_size: int
    pool: int = 0
    window: int = 0
    chunk: int = 0
    snapshots: Literal["chunk-end", "every-block"] = "chunk-end"
    source_group: int = -1
    answer_window: int = 0
    cleared: bool = False


class Retention(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the engine says it keeps of prunable groups.

    `interval` in tokens: None keeps every aligned boundary, 0 only reachable ones, R > 0 one in R
    and the reachable ones. `groups` are those that the interval governs. Reachable is the replay
    boundary; with `shared_prefix_boundary` also where a prefix that others share ends; with
    `extension` also the end of the prompt itself, where a longer prompt resumes. `lowered`: where a
    speculative look-up gives tokens back, reachable boundaries lie so many tokens lower.
    """

    interval: int | None = None
    groups: list[int] = []
    shared_prefix_boundary: bool = False
    extension: bool = False
    lowered: bool = True


class TierRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the engine says of a second tier that it asks for itself, rather than key by key
    wherever a page is.

    The tier serves prefixes of whole `chunk`s, in tokens. With `together`, all groups of a chunk
    are one object. With `fenced`, copies do not hold their pages: who is given one that a copy
    reads lets it end before it is written. With `engine_aborts`, a request whose load fails is given up.
    Fewer than `least` tokens beyond the device's hit are not loaded. With `unordered`, a load of
    several steps waits for none in flight. With `once`, a request is looked up once until it has
    pages (docs/reference/formats.md). With `drops`, its hits give tokens back where a speculative
    look-up does. With `whole_chunks`, it loads nothing behind a hit of the device that ends
    inside a chunk of chunked attention.
    """  # noqa: E501

    chunk: int
    together: bool = False
    fenced: bool = False
    engine_aborts: bool = False
    least: int = 0
    unordered: bool = False
    once: bool = False
    drops: bool = False
    whole_chunks: bool = False


class Unkeyed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the engine says that it keys nothing of, among whole blocks of attention that requests
    computed which end as intended.

    `answers`: blocks with generated tokens. `last`: the block with which a prompt ends. `duplicates`:
    a page beside one that has the key for its prefix, nor does it get one when that key ends.
    """  # noqa: E501

    answers: bool = False
    last: bool = False
    duplicates: bool = False


class Stores(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the engine says that it puts into a second tier while there is room: of each request
    that ends as intended, what it computed of its prompt, in whole chunks (`TierRules.chunk`; in
    whole blocks where the tier is asked key by key).

    With `answers`, chunks with generated tokens are stored as well. Nothing is stored of prompts of
    fewer than `shortest` tokens. `groups` are those of the device whose pages are stored; none
    named: all that have copies. With `keyed`, of recurrent groups those states alone are stored
    that have a key. A store may begin so many `steps` behind the request's end.
    """

    answers: bool = False
    shortest: int = 0
    groups: list[int] = []
    keyed: bool = False
    steps: int = 0


class Captures(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine says that has no keys, and captures the shared part of each prompt (`shared`
    of its `submit`) instead.

    A capture lies in pools of another tier, held by `capture:N`, and is found whole or not at all.
    The last `again` tokens of the part are computed again by everybody. `order`: who is given up if
    places run out, `lru` or `random`.
    """

    order: Literal["lru", "random"] = "random"
    again: int = 0


class KeyEvents(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine says of the events that it sends to routers (`kv_stored`, `kv_removed`,
    `kv_cleared`).

    `gaps`: the tokens of a `kv_stored` may be those of more blocks than it has hashes, and it does
    not say of which. `orphans`: its parent may be a prefix that no event told. `again`: it may tell
    of hits, whose keys were told before. `bare`: of blocks on another medium it may tell a name
    without its tokens. `tiers`: it tells as well what other tiers have that requests may load.
    `once`: it tells a name with the first page that has it, and that it is gone with the last.
    `late`: keys that begin in an operation in which a step ends may be told in the next one.
    """

    gaps: bool = False
    orphans: bool = False
    again: bool = False
    bare: bool = False
    tiers: bool = False
    once: bool = False
    late: bool = False


AnswerDtype = Literal["float64", "float32", "bfloat16", "float16"]
Resumes = Literal["", "recurrent", "sliding", "full"]


class Answering(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine says of its answers, at answers level.

    `dtype` is what it computes in, by which rounding is judged. Token ids of prompts are 0 to
    `vocabulary` − 1; ids behind them may be the model's special ones. `texts` is put in front of
    the names of texts before they are spelled: an engine that cannot begin with an empty cache has
    other prompts in each trace. Prompts of fewer than `shortest` tokens are given up.

    `resumes` is set if the engine tells from which kept state each request goes on (`resume`): one
    of a `recurrent` layer, of a `sliding` window of so many tokens, or keys and values that are
    kept whole (`full`). `inexact` is set if answers may depend on who shares the batch; the harness
    writes it down of an engine's kind. `repeats`: who asks with an equal prompt of at least so many
    tokens, at once behind its answer, has something restored, or is told why not (`why`); 0: the
    engine does not declare it.
    """

    dtype: AnswerDtype
    vocabulary: int
    texts: str = ""
    shortest: int = 1
    resumes: Resumes = ""
    window: int = 0
    inexact: bool = False
    repeats: int = 0


class Rules(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the engine declares of its own policy, so that checkers need no policy code.

    A rule that is not known here is refused, since it would change what is judged.

    `alignment`: hits are multiples of this many tokens. `eagle_drop_tokens`: tokens that a
    speculative look-up returns unused.
    `progress_steps`: in so many steps a feasible request advances. `reserved_pages`: so many pages
    of a pool stay free when a waiting request joins others. `drafts`: so many drafts are verified
    with a token at most; there are pages for so many more beyond them, and a page for the state
    after each. `tier` is set if what a second tier has does not complete what the device has.
    `eagle_groups`: the groups that a speculative look-up matches further; empty: all of them.
    `captures` is set if prefixes are captured rather than keyed. `max_prompt`: a prompt may have so
    many tokens, and alone it is held to its end; 0: any number for which the pools have room, and
    at answers level that the engine does not say.
    `engine_aborts`: where there is no room for all, requests are given up that would run alone. `idle_resets`: a reset is refused
    while a request is there, even one that waits. `key_events` is set if the engine tells routers
    of its keys, `stats` if it tells operators of its use, `clients` if it also tells the client of
    each answer how many tokens were restored, `answering` at answers level alone.
    `late_keys`: a key may begin steps behind the one that wrote its page. `static_batches`: who
    waits joins when all who run are over. `stores` is set if the engine says what it puts into a
    second tier, `unkeyed` says which whole blocks get no key. `frees_behind`: what lies behind a
    window or a recurrent state is given back before the next step of its request begins, unless a
    step in flight reads it. `checkpoint_alignment`: where a prompt is computed, a chunk ends at the
    last multiple of so many tokens at which an exact replay can resume, and at shared-prefix
    boundaries that retention keeps; 0: the engine does not say. `ranks`: requests are shared out to so many
    caches, and the history is that of one of them: a request that is given up before it was looked
    up is another's.
    """  # noqa: E501

    caching: bool = True
    alignment: int = 1
    eagle_drop_tokens: int = 0
    retention: Retention = Retention()
    progress_steps: int = 8
    reserved_pages: int = 0
    drafts: int = 0
    tier: TierRules | None = None
    eagle_groups: list[int] = []
    captures: Captures | None = None
    max_prompt: int = 0
    engine_aborts: bool = False
    idle_resets: bool = False
    key_events: KeyEvents | None = None
    answering: Answering | None = None
    stats: bool = False
    clients: bool = False
    late_keys: bool = False
    static_batches: bool = False
    stores: Stores | None = None
    unkeyed: Unkeyed = Unkeyed()
    frees_behind: bool = False
    checkpoint_alignment: int = 0
    ranks: int = 1


class Header(msgspec.Struct, frozen=True, tag_field="e", tag="header"):
    """The first line of a history: the machine that it happened on. `not_applicable` maps an
    invariant to why.

    At answers level there are no pools and no groups, and `answering` says what the answers are.
    """

    engine: str
    level: Level
    pools: list[Pool]
    groups: list[Group]
    rules: Rules = Rules()
    capabilities: list[str] = []
    not_applicable: dict[str, str] = {}
    engine_version: str = ""
    trace: str = ""
    format: str = FORMAT
    version: int = VERSION

    def local_groups(self) -> list[Group]:
        """Return the groups that the device computes with. A group in a pool of another tier
        only keeps pages of theirs.
        """
        tiers = {pool.id: pool.tier for pool in self.pools}
        return [group for group in self.groups if tiers[group.pool] == "local"]


class _Event(msgspec.Struct, omit_defaults=True, tag_field="e", kw_only=True, gc=False):
    seq: int = 0
    step: int = 0


# --- physical -------------------------------------------------------------------------------------


class Acquire(_Event, tag="acquire", gc=False):
    """`holder` (a request, or `copy:N`) now holds these pages for a group; several holders share
    a page by taking it each.
    """

    pool: int
    group: int
    pages: list[int]
    holder: str


class Release(_Event, tag="release", gc=False):
    """`holder` gives these pages back."""

    pool: int
    group: int
    pages: list[int]
    holder: str


class Grow(_Event, tag="grow", gc=False):
    """The engine added so many pages to a pool that grows; they are numbered on from those that
    it had, and hold nothing.
    """

    pool: int
    pages: int


class Write(_Event, tag="write", gc=False):
    """The worker wrote tokens [start, stop) of r; attention: `pages` are the columns start // b to
    (stop − 1) // b.

    Recurrent: the state after `stop` tokens, advanced from the state after `start`, is now in
    pages[0].
    """

    pool: int
    group: int
    pages: list[int]
    r: str
    start: int
    stop: int


class Read(_Event, tag="read", gc=False):
    """The worker read, for r, attention tokens [start, stop) from those columns; recurrent: the
    state after `stop` tokens.
    """

    pool: int
    group: int
    pages: list[int]
    r: str
    start: int
    stop: int


class Move(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """One page of a copy; pools may differ (a store or a retrieve). `tokens`: of attention, so
    many tokens from the page's beginning on, and what lies behind stays; 0: the whole page.
    """

    src: int
    dst: int
    src_pool: int = 0
    dst_pool: int = 0
    tokens: int = 0


class Copy(_Event, tag="copy", gc=False):
    """Pages copied as one simultaneous permutation; an asynchronous copy begins and ends (or
    fails) apart.
    """

    id: int
    moves: list[Move]
    phase: Literal["begin", "end", "fail", "whole"] = "whole"


class Zero(_Event, tag="zero", gc=False):
    """Pages overwritten with zeros."""

    pool: int
    pages: list[int]


# --- claims ---------------------------------------------------------------------------------------


class Publish(_Event, tag="publish", gc=False):
    """The page can be hit as the first `length` tokens of r, from now on; committed when the step
    that writes it ends.

    `extra_pages` are further pages that the same key occupies.
    """

    group: int
    page: int
    r: str
    length: int
    extra_pages: list[int] = []


UnpublishReason = Literal["evict", "reset", "replace", "withdraw", "retention", "version"]
"""Why a key can no longer be hit."""


class Unpublish(_Event, tag="unpublish", gc=False):
    """The key that the page carried can no longer be hit. `length` 0 names every key of the
    page.
    """

    group: int
    page: int
    length: int = 0
    reason: UnpublishReason = "evict"


class Hit(_Event, tag="hit", gc=False):
    """The engine reports `reported` tokens of r as cached; r starts computing at `resume` over
    `pages`, its columns per group.

    A group in a pool of another tier says from which of its pages each column was fetched (−1: not
    from there); the column of the local group is then the page that it was fetched into.
    """

    r: str
    reported: int
    resume: int
    pages: list[list[int]]
    tier: str = "local"


class Counts(_Event, tag="counts", gc=False):
    """The engine's own counts of pages: free, held by a holder, kept for their key alone. Null
    pages are in none of them.

    `refs` are (page, reference count) for the pages whose count changed since the last `counts` of
    the pool.
    """

    pool: int
    free: int
    held: int
    cached: int
    refs: list[tuple[int, int]] = []


class KvStored(_Event, tag="kv_stored", gc=False):
    """Routers are told of keys that began: the blocks of `block_size` of these tokens, behind the
    prefix `parent`.

    `hashes` are their names, which routers compare with those of other events; `parent` is empty
    for the beginning of a prompt. `group` is -1 if the engine names none. `salt`, `adapter` and
    `media` are what it says of their identity: of each block the multimodal items in it, (hash,
    where it begins, counted from the block's first token); a salt is said with the first block of a
    prompt alone. `medium` is where the blocks lie, empty for the device; `kind` what the engine
    says that the group is.
    """

    hashes: list[str]
    tokens: list[int]
    block_size: int
    group: int = -1
    parent: str = ""
    salt: str = ""
    adapter: str = ""
    media: list[list[tuple[str, int]]] = []
    medium: str = ""
    kind: str = ""


class KvRemoved(_Event, tag="kv_removed", gc=False):
    """Routers are told of keys that ended, one of each hash; another page may have the same key
    still. `medium` is where the blocks lay, empty for the device.
    """

    hashes: list[str]
    group: int = -1
    medium: str = ""


class KvCleared(_Event, tag="kv_cleared", gc=False):
    """Routers are told that every key of the device has ended."""


class KvUnreadable(_Event, tag="kv_unreadable", gc=False):
    """Routers are sent an event that they cannot read; `why` says what it is."""

    why: str


class Stats(_Event, tag="stats", gc=False):
    """Operators are told of a pool what share of its pages is in use, and what was looked up since
    they were told last.

    Of `requests` that were admitted with `looked_up` tokens the device had `found` (−1: the engine
    does not say); `again` is the same of those that had lost their place before. `tier`: of either,
    (requests, tokens that the device had not, how many of these another tier had), None if the
    engine does not say. `restored`: so many tokens their clients are told to be from a cache.
    """

    pool: int
    usage: float
    requests: int = -1
    looked_up: int = -1
    found: int = -1
    again: tuple[int, int, int] = (0, 0, 0)
    tier: tuple[int, int, int] | None = None
    restored: list[tuple[str, int]] = []


# --- life -----------------------------------------------------------------------------------------


class Submitted(_Event, tag="submit", gc=False):
    """A request entered the engine. Its first `shared` tokens are a part that others have too; 0:
    nobody said.

    At answers level it is to generate so many tokens (`generate`). A `session` waits for more
    input when its answer is over. With `prompt_logprobs` its client wants the log-probability of
    every token of the prompt, so none may be restored.
    """

    r: str
    tokens: list[int]
    salt: str = ""
    adapter: str = ""
    media: list[Media] = []
    kernels: str = ""
    shared: int = 0
    generate: int = 0
    session: bool = False
    prompt_logprobs: bool = False


class Run(msgspec.Struct, omit_defaults=True):
    """One request in a step: tokens [start, stop) are computed over `tables`, the pages per group
    by column.

    The last of them may be guessed: `drafts` are their ids. A recurrent group then writes the state
    after the known tokens into its column, and the state after the i-th draft into
    `scratch[group][i − 1]`.

    `fed` are the ids that the worker feeds for the known tokens, if they are not the request's own.
    `checkpoints` are states that the worker writes on its way: (group, page, tokens that the state
    has seen). `mirrors` are tokens that it also writes into a further page: (group, page, start,
    stop).
    """

    r: str
    start: int
    stop: int
    tables: list[list[int]]
    drafts: list[int] = []
    scratch: list[list[int]] = []
    fed: list[int] = []
    checkpoints: list[tuple[int, int, int]] = []
    mirrors: list[tuple[int, int, int, int]] = []

    @property
    def known(self) -> int:
        """Where the known tokens end and the drafts begin."""
        return self.stop - len(self.drafts)


class StepBegin(_Event, tag="step_begin"):
    """A step was scheduled. `asked` is who wanted how many tokens; `runs` who got them.

    Zeros come before the runs, then copies; `stores`, copies to another tier, come after them.
    Copies of one page that go on beside other steps have numbers: `begun` begin with this step
    (from another tier before the runs, to one after them), `ended` and `failed` are over when it
    has run, `flushed` before its runs.
    """

    asked: list[tuple[str, int]] = []
    runs: list[Run] = []
    copies: list[Move] = []
    zeros: list[tuple[int, list[int]]] = []
    stores: list[Move] = []
    begun: list[tuple[int, Move]] = []
    ended: list[int] = []
    failed: list[int] = []
    flushed: list[int] = []


class StepEnd(_Event, tag="step_end", gc=False):
    """The step is over: everybody in `runs` ran, except those withdrawn."""

    withdrawn: list[str] = []


class Settled(_Event, tag="settle"):
    """What of a step in flight is known only when it runs, since it was scheduled before drafts of
    earlier steps were verified.

    `runs` take the place of the runs of the same requests that the step began with: where they
    start and which drafts they have. Copies `before` are made after the step's own and before the
    runs, those `after` behind the runs.
    """

    runs: list[Run] = []
    before: list[Move] = []
    after: list[Move] = []

    def runs_of(self, begun: StepBegin) -> list[Run]:
        """Return all runs of the step as they turned out."""
        if not self.runs:
            return begun.runs
        known = {run.r: run for run in self.runs}
        return [known.get(run.r, run) for run in begun.runs]


class Accept(_Event, tag="accept", gc=False):
    """r now has `upto` tokens; `tokens` are the new ones."""

    r: str
    upto: int
    tokens: list[int]


class Paused(_Event, tag="pause", gc=False):
    """The answer of r, a session, is over. It keeps its pages and waits for more input; steps in
    flight compute in vain.
    """

    r: str


class Extended(_Event, tag="extend", gc=False):
    """A session that waits goes on: the first `keep` of its tokens stay, `tokens` come behind them,
    and all are its prompt now.

    The last token of an answer may be left out; no other is.
    """

    r: str
    keep: int
    tokens: list[int]


class Preempted(_Event, tag="preempt", gc=False):
    """r lost its pages and starts again; `by_engine`: nobody asked for it, nor for a reset, new
    weights or a withdrawal.
    """

    r: str
    by_engine: bool = False


class Aborted(_Event, tag="abort", gc=False):
    """r ended early; `by_engine`: nobody asked for it, the engine gave the request up."""

    r: str
    by_engine: bool = False


class Finished(_Event, tag="finish", gc=False):
    """r ended as intended; `by_engine`: nobody asked for it, and r was not as long as the engine
    lets a request grow.
    """

    r: str
    by_engine: bool = False


class ResetDone(_Event, tag="reset", gc=False):
    """A tier was asked to forget every key; `ok` is its answer."""

    ok: bool
    tier: str = "local"


class Version(_Event, tag="version", gc=False):
    """New weights or a new adapter; keys of every tier end with it."""

    weights: int = 0
    adapter: str = ""


class Culprit(msgspec.Struct, kw_only=True, gc=False):
    """The first thing of a step that is wrong: a `part` of a layer of a group.

    `key` and `value` (of a position), `memory` and `conv` (the state after so many tokens) were
    read from the block; `output` was computed from right inputs. `off` is the difference to the
    definition; where it is no number, `holds` says what there is.
    """

    layer: int
    layer_type: str
    group: int
    part: str
    position: int
    block: int
    off: float = 0.0
    holds: str = ""


class Compare(_Event, tag="compare", gc=False):
    """The device put its logits of tokens [start, stop) of r beside those of a computation that
    shares nothing with it.

    `beyond` of these rows differ by more than `tolerance`, or hold NaN (`nan` of them) or infinity
    (`infinite`); `largest` is the largest difference that is a number, `floor` the largest that
    rounding alone causes, `ceiling` the most that the tolerance may be. All in logits, which the
    device computes in `dtype`.

    Of rows beyond, the first is of position `at`; its likeliest token is `chose` (-1: no number)
    and ought to be `right`. `first` is the first layer of the step that is wrong.
    """

    r: str
    start: int
    stop: int
    beyond: int = 0
    largest: float = 0.0
    floor: float = 0.0
    tolerance: float = 0.0
    ceiling: float = 0.0
    dtype: str = ""
    nan: int = 0
    infinite: int = 0
    at: int = -1
    chose: int = -1
    right: int = -1
    first: Culprit | None = None


Ended = Literal["length", "stop", "cancelled", "refused"]


class Answer(_Event, tag="answer"):
    """What r generated, greedily, and the natural logarithm of each token's probability; None where
    that is no number.

    `restored` tokens of its prompt were taken from the cache when it was admitted; −1: the engine
    does not say. `ended`: by `length`, at a `stop` token, `cancelled` by its client, or `refused`:
    the engine gave it up. The request was sent `again` so often, since a server was not there, or
    had no time. `why` is what the engine says of why nothing was restored. `unused` is what it says
    that it kept of the prompt, could have gone on from, and did not: no excuse.
    """

    r: str
    tokens: list[int] = []
    logprobs: list[float | None] = []
    restored: int = -1
    ended: Ended = "length"
    again: int = 0
    why: str = ""
    unused: str = ""


class Resumed(_Event, tag="resume", gc=False):
    """r computes nothing of its first `at` tokens: it goes on from a state kept behind `taken`
    tokens of request `of`.

    `of` is its prompt with its answer, empty if the engine never said that it keeps such a state.
    `first`: the oldest position that the state has of a window; −1: the engine does not say.
    """

    r: str
    at: int
    of: str
    taken: int
    first: int = -1


class Cold(_Event, tag="cold"):
    """What the uncached baseline generated after the prompt of r and the first `start` tokens of
    its answer.

    `restored` is what the baseline says that it restored. `refused`: alone on a fresh engine with
    the same pool the request is given up as well, so it has no answer to compare. `floor` is by how
    much logarithms of right computations in `dtype` differ here, `tolerance` what is made of that,
    and `ceiling` the most that it may be. The floor is that of a prompt of `floor_tokens` tokens,
    asked alone and beside `floor_beside` others, 0 if it was asked alone again, −1 if nobody said.
    Requests to the baseline were sent `again` so often since the last one. `cause`: what the
    harness found to be behind a difference, empty if it did not look for it.
    """

    r: str
    tokens: list[int]
    logprobs: list[float | None] = []
    start: int = 0
    restored: int = -1
    refused: bool = False
    dtype: str = ""
    floor: float = 0.0
    tolerance: float = 0.0
    ceiling: float = 0.0
    floor_tokens: int = 0
    floor_beside: int = -1
    again: int = 0
    cause: str = ""


class Died(_Event, tag="engine-crashed", gc=False):
    """The engine raised, or its process ended, while it carried out an operation; `hung`: it
    gave no answer in time.
    """

    operation: int
    message: str
    hung: bool = False


Physical = Acquire | Release | Grow | Write | Read | Copy | Zero
Claim = Publish | Unpublish | Hit | Counts | KvStored | KvRemoved | KvCleared | KvUnreadable | Stats
Steps = StepBegin | Settled | StepEnd
Life = Submitted | Accept | Paused | Extended | Preempted | Aborted | Finished | ResetDone | Version
Outcome = Compare | Resumed | Answer | Cold | Died
Event = Physical | Claim | Steps | Life | Outcome


class History(msgspec.Struct):
    """A header and its events; `op_of[i]` is the index of the trace operation that event i
    belongs to (−1: none).
    """

    header: Header
    events: list[Event]
    op_of: list[int] = []

    def starts(self, operations: int) -> list[int]:
        """Return for each operation the number of its first event; of one without events that of
        the next.
        """
        first: dict[int, int] = {}
        for seq, op in enumerate(self.op_of):
            first.setdefault(op, seq)
        starts = [len(self.events)]
        for op in reversed(range(operations)):
            starts.append(first.get(op, starts[-1]))
        return starts[:0:-1]
