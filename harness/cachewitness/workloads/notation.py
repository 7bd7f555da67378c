"""Histories written by people: one event a line.

The header comes first::

    pool 0: 10 pages, null 0
    pool 1: 8 pages, tier cpu, evicts lru     also `evicts lru-used above 80 %`, `lru-leaves together`, `lru after 9 steps`,
        `lru in one queue`
    group 0: full block 4
    group 1: sliding block 4 window 6         chunked block 4 chunk 8 | recurrent block 4 [every-block]
    group 2: full block 4 pool 1 of 0
    rules: alignment 4, eagle-drop 4, drafts 2, retention 0 on 1, shared-prefix-boundary, no-caching, progress 4
    rules: max-prompt 12, aborts-for-room, static-batches
    rules: captures, idle-resets, key-events, key-events-with-gaps, key-events-with-orphans, stats
    rules: key-events-of-hits, key-events-once-and-late, stores, stores-answers, stores-keyed, no-keys-of-answers, no-keys-of-duplicates

Events follow. Pages stand behind bars, group 0 first; what follows `#` is a comment::

    submit r1 sys:8 a:2 salt=x adapter=tuned media=4+2:cat shared=8
    hit r1 8 | 3 4 | 0 5                      `hit r1 8 resume 7 tier cpu | 3 4 | - 5`: column 0 was not fetched
    acquire r1 | 3 4 | 5                         `drop r1 | 3`, or `drop r1` for all that it holds
    publish 1/5 r1:8                          page 5 of group 1 as the first 8 tokens of r1
    unpublish 1/5 evict                       `unpublish 1/5:8 evict` if the page has several keys
    step 1: r1 0..8 | 3 4 | 0 5; r2 …         also `; asks r3 4; copy 7>8 1/2>0/3; zero 0/5; withdraw r2`
    step 1: r1 8..9 ~x:2 | 3 4 | 0 5 ~ 6 7    two drafts after the known tokens [8, 9); their states go to 6 and 7
    step 1: r1 8..9 =y:1 | 3 4                the worker's row has another token there, and feeds that
    step 1: r1 8..9 | 3 4; store 0/4>1/0      copied to another tier after all runs
    step 1: begun 7 1/0>0/5; ended 6          copy 7 goes on beside other steps, copy 6 is over; also `failed 6`, `flushed 6`
    step 1: r1 0..8 | 3 4 | 0 5; saves r1 1/6:4        on its way r1 leaves the state after 4 tokens in page 6 of group 1
    begin 2: r1 8..9 | 3 4 6 | 0 5 7          a step in flight, until `end 2` or `end 2 withdraw r1`
    settle 2: r1 7..8 | 3 4 | 5 ~ 6           how a run of step 2 turned out; also `before 6>5; after 6>7`: copies
    accept r1 9 @r1:1                         r1 now has 9 tokens, the last of which is new
    preempt r1 / abort r1 / finish r1         or `preempt r1 by engine`
    submit r1 sys:8 prompt_logprobs=yes                            none of its tokens may be restored
    submit r1 sys:8 session=yes / pause r1 / extend r1 9 u2:4        its first 9 tokens stay, those of u2 come behind them
    reset ok / reset failed                   `reset ok tier cpu`
    version 1                                 `version 1 adapter tuned`
    counts 0: free 5 held 3 cached 1          `refs 3=2 4=1`
    stored 0 h1 h2 | sys:8 by 4               routers are told; `… behind h0 salt=x adapter=tuned media=cat@1,-`, `stored - …`
    removed 0 h1 / cleared                    `removed - h1` names no group; `unreadable Moved is no event`
    stats 0: usage 0.5 admitted 1 of 9 found 8        operators are told; `… again 1 of 9 found 8 tier 1 of 5 found 4 restored r1=8`
    died 4 AssertionError: no block

A history at answers level begins with a line of its own, and has no pages and no steps::

    answers float32 vocabulary 100
    submit r1 sys:8 generate=2
    answers float32 vocabulary 100 repeats 9         equal prompts of 9 tokens and more restore something
    answers float32 vocabulary 100 resumes sliding 4    or `resumes recurrent`, `resumes full`; then there is:
    resume r2 8 of r1:9 first 3                      or without `first`; `of nobody`: the engine never said so
    answer r1 @r1:2 | -0.5 -1.25 | restored 8        also `| cancelled`, `restored 0 why evicted` or `unused TEXT`; no logprobs: `answer r1 @r1:2`
    cold r1 @r1:2 | -0.5 -1.25 | restored 0 tolerance 0.001      behind a near-tie: `cold r1 @r1[1]:1 | -1.25 | start 1 …`

The worker derives what a step reads and writes; a test that needs raw events may write `write 0 r1
0..8 | 3 4` and `read 0 …` (group, request, tokens), `copy 7 begin 3>4`, `zero 0/5`. An event
belongs to the step that begins next, unless it ends in `@1`.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.events import (
    Aborted,
    Accept,
    Acquire,
    Answer,
    Answering,
    Captures,
    Cold,
    Copy,
    Counts,
    Died,
    Event,
    Eviction,
    Extended,
    Finished,
    Group,
    Header,
    History,
    Hit,
    KeyEvents,
    KvCleared,
    KvRemoved,
    KvStored,
    KvUnreadable,
    Move,
    Order,
    Paused,
    Pool,
    Preempted,
    Publish,
    Read,
    Release,
    ResetDone,
    Resumed,
    Retention,
    Rules,
    Run,
    Settled,
    Stats,
    StepBegin,
    StepEnd,
    Stores,
    Submitted,
    Unkeyed,
    Unpublish,
    UnpublishReason,
    Version,
    Write,
    Zero,
)
from cachewitness.core.restored import NOWHERE
from cachewitness.core.trace_format import Media, Vocabulary
from cachewitness.core.worker import Worker

PLAIN_RULES: dict[str, dict[str, Any]] = {
    "idle-resets": {"idle_resets": True},
    "no-caching": {"caching": False},
    "captures": {"captures": Captures("lru")},
    "key-events": {"key_events": KeyEvents()},
    "key-events-with-gaps": {"key_events": KeyEvents(gaps=True)},
    "key-events-with-orphans": {"key_events": KeyEvents(orphans=True)},
    "key-events-of-hits": {"key_events": KeyEvents(again=True)},
    "key-events-once-and-late": {"key_events": KeyEvents(once=True, late=True)},
    "stats": {"stats": True},
    "clients": {"clients": True},
    "late-keys": {"late_keys": True},
    "aborts-for-room": {"engine_aborts": True},
    "static-batches": {"static_batches": True},
    "stores": {"stores": Stores()},
    "stores-answers": {"stores": Stores(answers=True)},
    "stores-keyed": {"stores": Stores(keyed=True)},
    "no-keys-of-answers": {"unkeyed": Unkeyed(answers=True)},
    "no-keys-of-duplicates": {"unkeyed": Unkeyed(duplicates=True)},
    "frees-behind": {"frees_behind": True},
    "two-ranks": {"ranks": 2},
}


def parse(text: str, where: str = "history", name: str = "") -> History:
    """Read a history; `where` names the text in messages, `name` the trace in the header.

    Raises UsageError naming the line and what is wrong with it.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            reader.line(line.partition("#")[0].strip())
        except UsageError as error:
            raise UsageError(f"{where}:{number}: {error}") from None
        except ValueError:  # Python reads no number of thousands of digits
            raise UsageError(f"{where}:{number}: a number is too long to be read") from None
    if reader.answering is not None:
        rules = Rules(answering=reader.answering)
        header = Header("story", "answers", reader.pools, reader.groups, rules, trace=name)
        return History(header, _numbered(reader.events), [-1] * len(reader.events))
    if not reader.pools or not reader.groups:
        raise UsageError(f"{where}: a history starts with its pools and groups")
    header = Header("story", "manager", reader.pools, reader.groups, reader.rules, trace=name)
    events = _numbered(Worker(header).extend(reader.events))
    return History(header, events, [-1] * len(events))


def _matched(pattern: str, text: str, form: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise UsageError(f"{text!r} is not of the form `{form}`")
    return match


def _numbers(text: str) -> list[int]:
    if not re.fullmatch(r"[\d\s]*", text):
        raise UsageError(f"{text.strip()!r} should be numbers")
    return [int(word) for word in text.split()]


class _Reader:
    """Reads line by line. Remembers who holds what, for `drop r`, and who has which tokens."""

    def __init__(self) -> None:
        self.pools: list[Pool] = []
        self.groups: list[Group] = []
        self.rules = Rules()
        self.answering: Answering | None = None
        self.events: list[Event] = []
        self._vocabulary = Vocabulary()
        self._tokens: dict[str, list[int]] = {}
        self._holds: dict[str, list[list[int]]] = {}
        self._step = 1

    def line(self, text: str) -> None:
        """Read one line; an empty one is none."""
        verb, _, rest = text.replace("rules:", "rules", 1).partition(" ")
        read: Callable[[str], Any] | None = getattr(self, f"_read_{verb}", None)
        if read is None and verb:
            verbs = sorted(name[6:] for name in dir(self) if name.startswith("_read_"))
            raise UsageError(f"{verb!r} begins no line; known are {', '.join(verbs)}")
        if read is None:
            return
        rest, step = rest.strip(), self._step
        override = re.search(r"(?:^|\s)@(\d+)$", rest)
        if override:
            rest, step = rest[: override.start()], int(override[1])
        first = len(self.events)
        read(rest)
        for event in self.events[first:]:
            event.step = event.step or step

    # --- header -----------------------------------------------------------------------------------

    def _read_pool(self, rest: str) -> None:
        form = "pool 0: 10 pages, null 0, tier cpu, evicts lru"
        evicts = (
            r"(?:, evicts ([a-z-]+)(?: above (\d+) %)?( together)?(?: after (\d+) steps)?"
            r"( in one queue)?)?"
        )
        match = _matched(
            r"(\d+): (\d+) pages(?:, null ([\d ]+))?(?:, tier (\w+))?" + evicts, rest, form
        )
        eviction = None
        order = cast(Any, match[5])
        if order and order not in Order.__args__:  # type: ignore[attr-defined]
            raise UsageError(f"{order!r} is no order of eviction")
        if order:
            eviction = Eviction(
                order,
                watermark=int(match[6] or 100) / 100,
                together=bool(match[7]),
                ttl=int(match[8] or 0),
                free_first=not match[9],
            )
        self.pools.append(
            Pool(
                int(match[1]),
                int(match[2]),
                _numbers(match[3] or ""),
                match[4] or "local",
                eviction,
            )
        )

    def _read_group(self, rest: str) -> None:
        form = "group 0: sliding block 4 window 6 pool 0"
        pattern = (
            r"(\d+): (full|sliding|chunked|recurrent) block (\d+)((?: (?:window|chunk|pool|of)"
            r" \d+)*)( every-block)?"
        )
        match = _matched(pattern, rest, form)
        names = {"of": "source_group"}
        measures: dict[str, Any] = {
            names.get(name, name): int(value)
            for name, value in re.findall(r"(\w+) (\d+)", match[4])
        }
        kind: Any = match[2]
        if int(match[1]) != len(self.groups):
            raise UsageError(f"group {match[1]} comes as number {len(self.groups)}")
        if measures.get("pool", 0) not in [pool.id for pool in self.pools]:
            raise UsageError(
                f"group {match[1]} lies in pool {measures.get('pool', 0)}, which no line before"
                " declares"
            )
        snapshots: Any = "every-block" if match[5] else "chunk-end"
        self.groups.append(
            Group(len(self.groups), kind, int(match[3]), **measures, snapshots=snapshots)
        )

    def _read_rules(self, rest: str) -> None:
        rules: dict[str, Any] = {}
        kept = Retention()
        plain = {
            "eagle-drop": "eagle_drop_tokens",
            "progress": "progress_steps",
            "max-prompt": "max_prompt",
            "checkpoints": "checkpoint_alignment",
        }
        plain |= {word: word for word in ("alignment", "drafts")}
        for item in rest.split(","):
            match = _matched(
                r"\s*([a-z-]+)(?: (\d+|dense)(?: on ([\d ]+))?)?\s*",
                item,
                "alignment 4, retention 0 on 1",
            )
            word = match[1]
            number = match[2]
            if word == "retention":
                interval = None if number == "dense" else int(number)
                kept = msgspec.structs.replace(
                    kept, interval=interval, groups=_numbers(match[3] or "")
                )
            elif word in plain and number:
                rules[plain[word]] = int(number)
            elif word == "shared-prefix-boundary":
                kept = msgspec.structs.replace(kept, shared_prefix_boundary=True)
            elif word in PLAIN_RULES:
                rules |= PLAIN_RULES[word]
            else:
                raise UsageError(f"no rule is called {item.strip()!r}")
        self.rules = Rules(**rules, retention=kept)

    # --- answers ----------------------------------------------------------------------------------

    def _read_answers(self, rest: str) -> None:
        form = (
            r"(float64|float32|bfloat16|float16) vocabulary (\d+)(?: resumes"
            r" (recurrent|full|sliding) ?(\d*))?(?: repeats (\d+))?"
        )
        match = _matched(form, rest, "answers float32 vocabulary 100")
        dtype: Any = match[1]
        resumes: Any = match[3] or ""
        self.answering = Answering(
            dtype,
            int(match[2]),
            resumes=resumes,
            window=int(match[4] or 0),
            repeats=int(match[5] or 0),
        )

    def _read_resume(self, rest: str) -> None:
        match = _matched(
            r"(\S+) (\d+) of (?:nobody|(\S+):(\d+))(?: first (\d+))?",
            rest,
            "resume r2 8 of r1:9 first 3",
        )
        taken = int(match[4] or 0)
        first = int(match[5] or -1)
        self.events.append(
            Resumed(r=match[1], at=int(match[2]), of=match[3] or "", taken=taken, first=first)
        )

    def _read_answer(self, rest: str) -> None:
        r, fields, words = self._answer_of(rest)
        ended: Any = next(
            (word for word in ("stop", "cancelled", "refused") if word in words.split()), "length"
        )
        numbers = dict(re.findall(r"(restored) (\d+)", words))
        _, _, why = words.partition(" why ")
        _, _, unused = words.partition(" unused ")
        restored = int(numbers.get("restored", -1))
        fields |= {"restored": restored, "ended": ended}
        self.events.append(Answer(r=r, **fields, why=why.strip(), unused=unused.strip()))

    def _read_cold(self, rest: str) -> None:
        r, fields, words = self._answer_of(rest)
        numbers = dict(re.findall(r"(restored|start|tolerance|floor\w*) ([\d.]+)", words))
        counts: dict[str, Any] = {
            field: int(numbers[field])
            for field in ("restored", "start", "floor_tokens", "floor_beside")
            if field in numbers
        }
        limits: dict[str, Any] = {
            name: float(numbers[name]) for name in ("floor",) if name in numbers
        }
        limits["tolerance"] = float(numbers.get("tolerance", 0))
        self.events.append(Cold(r=r, **fields, **counts, **limits, dtype="float32", ceiling=1.0))

    def _answer_of(self, rest: str) -> tuple[str, dict[str, Any], str]:
        """Return of whom a line is, the tokens and logprobs in it, and the rest of its words."""
        spoken, _, more = rest.partition("|")
        logprobs, _, words = more.partition("|")
        r, _, prompt = spoken.strip().partition(" ")
        numbers = [float(word) for word in logprobs.split()]
        return (
            self._request(r),
            {"tokens": self._vocabulary.tokens(prompt), "logprobs": numbers},
            words,
        )

    # --- life -------------------------------------------------------------------------------------

    def _read_submit(self, rest: str) -> None:
        r, _, words = rest.partition(" ")
        identity = dict(
            re.findall(
                r"\b(salt|adapter|media|kernels|shared|generate|session|prompt_logprobs)=(\S+)",
                words,
            )
        )
        media = []
        for item in filter(None, identity.pop("media", "").split(",")):
            match = _matched(r"(\d+)\+(\d+):(\w+)", item, "media=4+2:cat")
            media.append(Media(int(match[1]), int(match[2]), match[3]))
        tokens = self._vocabulary.tokens(
            " ".join(word for word in words.split() if "=" not in word)
        )
        if r in self._tokens or not tokens:
            raise UsageError(
                f"{r} {'is submitted twice' if r in self._tokens else 'has no tokens'}"
            )
        self._tokens[r] = tokens
        counts: dict[str, Any] = {
            field: int(identity.pop(field, 0)) for field in ("shared", "generate")
        }
        for field in ("session", "prompt_logprobs"):
            counts[field] = identity.pop(field, "") == "yes"
        self.events.append(Submitted(r=r, tokens=list(tokens), media=media, **counts, **identity))

    def _read_accept(self, rest: str) -> None:
        match = _matched(r"(\S+) (\d+) (.+)", rest, "accept r1 9 @r1:1")
        r = self._request(match[1])
        upto = int(match[2])
        tokens = self._vocabulary.tokens(match[3])
        if not 0 <= upto - len(tokens) <= len(self._tokens[r]):
            raise UsageError(
                f"{r} has {len(self._tokens[r])} tokens; {len(tokens)} more do not make {upto}"
            )
        self._tokens[r][upto - len(tokens) :] = tokens
        self.events.append(Accept(r=r, upto=upto, tokens=tokens))

    def _read_pause(self, rest: str) -> None:
        self.events.append(Paused(r=self._request(rest)))

    def _read_extend(self, rest: str) -> None:
        match = _matched(r"(\S+) (\d+) (.+)", rest, "extend r1 9 u2:4")
        r = self._request(match[1])
        keep = int(match[2])
        tokens = self._vocabulary.tokens(match[3])
        self._tokens[r][keep:] = tokens
        self.events.append(Extended(r=r, keep=keep, tokens=tokens))

    def _read_preempt(self, rest: str) -> None:
        r, _, how = rest.partition(" ")
        self.events.append(Preempted(r=self._request(r), by_engine=how == "by engine"))

    def _read_abort(self, rest: str) -> None:
        r, _, how = rest.partition(" ")
        self.events.append(Aborted(r=self._request(r), by_engine=how == "by engine"))

    def _read_finish(self, rest: str) -> None:
        r, _, how = rest.partition(" ")
        self.events.append(Finished(r=self._request(r), by_engine=how == "by engine"))

    def _read_reset(self, rest: str) -> None:
        match = _matched(r"(ok|failed)(?: tier (\w+))?", rest, "reset ok tier cpu")
        self.events.append(ResetDone(ok=match[1] == "ok", tier=match[2] or "local"))

    def _read_version(self, rest: str) -> None:
        match = _matched(r"(\d+)(?: adapter (\w+))?", rest, "version 1 adapter tuned")
        self.events.append(Version(weights=int(match[1]), adapter=match[2] or ""))

    def _read_died(self, rest: str) -> None:
        match = _matched(r"(\d+) (.+)", rest, "died 4 AssertionError: no block")
        self.events.append(Died(operation=int(match[1]), message=match[2]))

    # --- steps ------------------------------------------------------------------------------------

    def _read_step(self, rest: str) -> None:
        self._read_begin(rest)
        begun = self.events[-1]
        gone = re.findall(r"; withdraw ([^;]+)", rest)
        self.events.append(StepEnd(step=begun.step, withdrawn=gone[0].split() if gone else []))

    def _read_begin(self, rest: str) -> None:
        match = _matched(r"(\d+):(.*)", rest, "step 1: r1 0..8 | 3 4 | 0 5")
        begin = StepBegin(step=int(match[1]))
        for clause in filter(None, (clause.strip() for clause in match[2].split(";"))):
            word, _, words = clause.partition(" ")
            if word == "asks":
                r, _, tokens = words.partition(" ")
                begin.asked.append((self._request(r), int(tokens)))
            elif word == "copy":
                begin.copies += self._moves(words)
            elif word == "store":
                begin.stores += self._moves(words)
            elif word == "begun":
                number, _, move = words.partition(" ")
                begin.begun += [(int(number), one) for one in self._moves(move)]
            elif word in ("ended", "failed", "flushed"):
                getattr(begin, word).extend(_numbers(words))
            elif word == "zero":
                begin.zeros += [(pool, [page]) for pool, page in self._places(words)]
            elif word == "saves":
                self._saves(begin, words)
            elif word != "withdraw":
                run = self._run(clause)
                begin.runs.append(run)
                begin.asked.append((run.r, run.stop - run.start))
        self.events.append(begin)
        self._step = begin.step + 1

    def _saves(self, begin: StepBegin, words: str) -> None:
        match = _matched(r"(\S+) (\d+)/(\d+):(\d+)", words, "saves r1 1/6:4")
        group, page = self._page(int(match[2]), int(match[3]))
        runs = [run for run in begin.runs if run.r == match[1]]
        if not runs:
            raise UsageError(f"{match[1]} does not run before `saves`")
        runs[0].checkpoints = [*runs[0].checkpoints, (group, page, int(match[4]))]

    def _read_end(self, rest: str) -> None:
        match = _matched(r"(\d+)(?: withdraw (.+))?", rest, "end 1 withdraw r1")
        self.events.append(StepEnd(step=int(match[1]), withdrawn=(match[2] or "").split()))

    def _read_settle(self, rest: str) -> None:
        match = _matched(r"(\d+):(.*)", rest, "settle 2: r1 7..8 | 3 4; after 6>7")
        settled = Settled(step=int(match[1]))
        for clause in filter(None, (clause.strip() for clause in match[2].split(";"))):
            word, _, words = clause.partition(" ")
            if word in ("before", "after"):
                getattr(settled, word).extend(self._moves(words))
            else:
                settled.runs.append(self._run(clause))
        self.events.append(settled)

    def _run(self, clause: str) -> Run:
        match = _matched(
            r"(\S+) (\d+)\.\.(\d+)(?: =([^|~]+))?(?: ~([^|]+))? *(\|.*)",
            clause,
            "r1 0..8 | 3 4 | 0 5",
        )
        start = int(match[2])
        known = int(match[3])
        # A run with drafts may be behind another that is in flight, and be of tokens to come.
        r = self._request(match[1], 0 if match[5] else known)
        if start >= known:
            raise UsageError(f"{r} runs no tokens from {start} to {known}")
        fed, drafts = (self._vocabulary.tokens(match[group] or "") for group in (4, 5))
        tables = []
        scratch = []
        for bar in match[6].split("|")[1:]:
            table, _, aside = bar.partition("~")
            tables.append(table)
            scratch.append(aside)
        states = self._tables("|" + "|".join(scratch)) if drafts else []
        return Run(
            r, start, known + len(drafts), self._tables("|" + "|".join(tables)), drafts, states, fed
        )

    # --- claims and pages -------------------------------------------------------------------------

    def _read_hit(self, rest: str) -> None:
        match = _matched(
            r"(\S+) (\d+)(?: resume (\d+))?(?: tier (\w+))? *(\|.*)?",
            rest,
            "hit r1 8 resume 7 | 3 4 | 0 5",
        )
        r = self._request(match[1])
        reported = int(match[2])
        resume = int(match[3]) if match[3] else reported
        self.events.append(
            Hit(
                r=r,
                reported=reported,
                resume=resume,
                pages=self._tables(match[5] or "", hit=True),
                tier=match[4] or "local",
            )
        )

    def _read_publish(self, rest: str) -> None:
        match = _matched(r"(\d+)/(\d+) (\S+):(\d+)", rest, "publish 1/5 r1:8")
        group, page = self._page(int(match[1]), int(match[2]))
        r = self._request(match[3], int(match[4]))
        self.events.append(Publish(group=group, page=page, r=r, length=int(match[4])))

    def _read_unpublish(self, rest: str) -> None:
        match = _matched(r"(\d+)/(\d+)(?::(\d+))? (\w+)", rest, "unpublish 1/5 evict")
        group, page = self._page(int(match[1]), int(match[2]))
        reason: Any = match[4]
        if reason not in UnpublishReason.__args__:  # type: ignore[attr-defined]
            raise UsageError(f"{reason!r} is no reason to unpublish")
        self.events.append(
            Unpublish(group=group, page=page, length=int(match[3] or 0), reason=reason)
        )

    def _read_stored(self, rest: str) -> None:
        pattern = r"(\d+|-)((?: \w+)*) \|([^=]*?) by (\d+)(?: behind (\w+))?((?: \w+=\S+)*)"
        match = _matched(pattern, rest, "stored 0 h1 h2 | sys:8 by 4 behind h0 salt=x")
        attributes = dict(re.findall(r"(\w+)=(\S+)", match[6]))
        blocks = filter(None, attributes.pop("media", "").split(","))
        media = [
            [(name, int(at)) for name, at in re.findall(r"(\w+)@(-?\d+)", items)]
            for items in blocks
        ]
        self.events.append(
            KvStored(
                group=-1 if match[1] == "-" else int(match[1]),
                hashes=match[2].split(),
                tokens=self._vocabulary.tokens(match[3]),
                block_size=int(match[4]),
                parent=match[5] or "",
                media=media,
                **{name: attributes[name] for name in attributes if name in ("salt", "adapter")},
            )
        )

    def _read_removed(self, rest: str) -> None:
        match = _matched(r"(\d+|-)((?: \w+)*)", rest, "removed 0 h1")
        self.events.append(
            KvRemoved(group=-1 if match[1] == "-" else int(match[1]), hashes=match[2].split())
        )

    def _read_cleared(self, rest: str) -> None:
        _matched("", rest, "cleared")
        self.events.append(KvCleared())

    def _read_unreadable(self, rest: str) -> None:
        self.events.append(KvUnreadable(why=rest))

    def _read_stats(self, rest: str) -> None:
        form = (
            "stats 0: usage 0.5 admitted 1 of 9 found 8 again 1 of 9 found 8 tier 1 of 5 found 4"
            " restored r1=8"
        )
        look_ups = r"(\d+) of (\d+) found (\d+)"
        pattern = (
            rf"(\d+): usage ([\d.]+)(?: admitted {look_ups})?(?: again {look_ups})?"
            rf"(?: tier {look_ups})?(?: restored ((?:\w+=\d+ ?)+))?"
        )
        match = _matched(pattern, rest, form)
        first, again, tier = (
            (int(match[at]), int(match[at + 1]), int(match[at + 2])) if match[at] else None
            for at in (3, 6, 9)
        )
        self.events.append(
            Stats(
                pool=int(match[1]),
                usage=float(match[2]),
                **(
                    dict(zip(("requests", "looked_up", "found"), first, strict=True))
                    if first
                    else {}
                ),
                again=again or (0, 0, 0),
                tier=tier,
                restored=[
                    (r, int(count)) for r, count in re.findall(r"(\w+)=(\d+)", match[12] or "")
                ],
            )
        )

    def _read_acquire(self, rest: str) -> None:
        holder, _, bars = rest.partition(" ")
        held = self._holds.setdefault(holder, [[] for _ in self.groups])
        for group, pages in self._filled(self._tables(bars)):
            held[group.id] += pages
            self.events.append(Acquire(pool=group.pool, group=group.id, pages=pages, holder=holder))

    def _read_release(self, rest: str) -> None:
        holder, _, bars = rest.partition(" ")
        held = self._holds.get(holder, [])
        for group, pages in self._filled(
            self._tables(bars) if bars else [list(pages) for pages in held]
        ):
            self.events.append(Release(pool=group.pool, group=group.id, pages=pages, holder=holder))
            for page in pages:
                if held and page in held[group.id]:
                    held[group.id].remove(page)

    def _read_counts(self, rest: str) -> None:
        form = "counts 0: free 5 held 3 cached 1 refs 3=2"
        match = _matched(
            r"(\d+): free (\d+) held (\d+) cached (\d+)(?: refs ((?:\d+=\d+ ?)+))?", rest, form
        )
        pool, free, held, cached = map(int, match.group(1, 2, 3, 4))
        refs = [
            (int(page), int(count)) for page, count in re.findall(r"(\d+)=(\d+)", match[5] or "")
        ]
        self.events.append(Counts(pool=pool, free=free, held=held, cached=cached, refs=refs))

    def _read_write(self, rest: str) -> None:
        group, r, start, stop, pages = self._access(rest)
        self.events.append(
            Write(pool=group.pool, group=group.id, pages=pages, r=r, start=start, stop=stop)
        )

    def _read_read(self, rest: str) -> None:
        group, r, start, stop, pages = self._access(rest)
        self.events.append(
            Read(pool=group.pool, group=group.id, pages=pages, r=r, start=start, stop=stop)
        )

    def _read_copy(self, rest: str) -> None:
        match = _matched(r"(\d+) (begin|end|fail|whole) (.+)", rest, "copy 1 whole 3>4")
        phase: Any = match[2]
        self.events.append(Copy(id=int(match[1]), moves=self._moves(match[3]), phase=phase))

    def _read_zero(self, rest: str) -> None:
        self.events += [Zero(pool=pool, pages=[page]) for pool, page in self._places(rest)]

    # --- parts of lines ---------------------------------------------------------------------------

    def _request(self, r: str, length: int = 0) -> str:
        if r not in self._tokens:
            raise UsageError(f"no request {r!r} was submitted before this line")
        if length > len(self._tokens[r]):
            raise UsageError(f"{r} has {len(self._tokens[r])} tokens, not {length}")
        return r

    def _access(self, rest: str) -> tuple[Group, str, int, int, list[int]]:
        match = _matched(r"(\d+) (\S+) (\d+)\.\.(\d+) \|([\d\s]*)", rest, "write 0 r1 0..8 | 3 4")
        pages = [self._page(int(match[1]), page)[1] for page in _numbers(match[5])]
        stop = int(match[4])
        return self.groups[int(match[1])], self._request(match[2], stop), int(match[3]), stop, pages

    def _tables(self, bars: str, *, hit: bool = False) -> list[list[int]]:
        """Return the pages behind each bar, one list for every group. A hit says `-` of a column
        that another tier did not fill.
        """
        before, *parts = bars.split("|")
        if before.strip() or len(parts) > len(self.groups):
            raise UsageError(
                f"{bars.strip()!r} should be pages behind a bar for each of {len(self.groups)}"
                " groups"
            )
        return [
            [
                NOWHERE if hit and word == "-" else self._page(group, *_numbers(word))[1]
                for word in part.split()
            ]
            for group, part in enumerate([*parts, *[""] * (len(self.groups) - len(parts))])
        ]

    def _filled(self, tables: list[list[int]]) -> Iterator[tuple[Group, list[int]]]:
        return ((group, pages) for group, pages in zip(self.groups, tables, strict=False) if pages)

    def _page(self, group: int, page: int) -> tuple[int, int]:
        if group >= len(self.groups):
            raise UsageError(f"there is no group {group}")
        self._place(self.groups[group].pool, page)
        return group, page

    def _place(self, pool: int, page: int) -> tuple[int, int]:
        pages = next((known.pages for known in self.pools if known.id == pool), 0)
        if page >= pages:
            raise UsageError(f"pool {pool} has no page {page}")
        return pool, page

    def _places(self, words: str) -> list[tuple[int, int]]:
        matches = [_matched(r"(\d+)/(\d+)", word, "zero 0/5") for word in words.split()]
        return [self._place(int(match[1]), int(match[2])) for match in matches]

    def _moves(self, words: str) -> list[Move]:
        moves = []
        for word in words.split():
            form = r"(?:(\d+)/)?(\d+)>(?:(\d+)/)?(\d+)(?::(\d+))?"
            match = _matched(form, word, "copy 7>8 1/2>0/3 4>5:8")
            source = self._place(int(match[1] or 0), int(match[2]))
            target = self._place(int(match[3] or 0), int(match[4]))
            tokens = int(match[5] or 0)
            moves.append(Move(source[1], target[1], source[0], target[0], tokens))
        return moves


def _numbered(events: list[Event]) -> list[Event]:
    """Give every event its place in the total order, and return them."""
    for seq, event in enumerate(events):
        event.seq = seq
    return events
