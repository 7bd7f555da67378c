"""The safety law: a request reads exactly the content of its own prefix.

Several checkers share the law, and each answers for its own anomalies of an invalid read, so that a
run shows which part of the law had opportunities and which had none. The checker set diagnoses the
read and gives the finding to the checker that answers for its anomaly.
"""

from __future__ import annotations

from itertools import product

from cachewitness.core.attention_span import has_window
from cachewitness.core.checkers.diagnose import (
    content_of,
    is_rounded_up,
    short_content,
)
from cachewitness.core.checkers.difference import difference
from cachewitness.core.checkers.finding import EARLY_COPY, ROUNDED_UP, Finding
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.wording import count, key_of, named, page_list, with_detail
from cachewitness.core.events import Header, Hit, Publish, Read, StepBegin, StepEnd, Submitted
from cachewitness.core.ledger.given_back import cause_of
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import NOTHING, Content, Key, PageRecord


class SafetyLaw(Checker):
    """Every read lies on pages that hold what the request needs."""

    name = "safety-law"
    summary = (
        "every read lies on pages whose content is of exactly this request's prefix, at the"
        " position it resumes at"
    )
    anomalies = (
        "stale-hit",
        "use-after-free",
        "state-position-skew",
        "group-misalignment",
        "hit-beyond-resume",
        "unwanted-hit",
        "nothing-to-compute",
    )
    answers_for_reads = True

    def handlers(self) -> dict[type, Handler]:
        return {Read: self.on_read, Hit: self.on_hit, StepBegin: self.on_step_begin}

    def on_step_begin(self, ledger: Ledger, event: StepBegin) -> Found:
        """Ask for zeros where a text begins, of a device that would go on from what is there."""
        cleared = [group for group in ledger.groups if group.cleared]
        if not cleared:
            return None
        zeros = {(pool, page) for pool, pages in event.zeros for page in pages}
        found = []
        begun = [run for run in event.runs if run.start == 0]
        for run, group in product(begun, cleared):
            self.opportunities += 1
            page = run.tables[group.id][0]
            record = ledger.record(group.id, page)
            if (group.pool, page) not in zeros and record is not None and _is_used(record):
                found.append(_not_cleared(run.r, page, event.step))
        return found

    def on_read(self, ledger: Ledger, event: Read) -> Found:
        """Count reads of what a hit restored; every read where nothing is ever cached."""
        hit = ledger.requests[event.r].hit
        if (hit is not None and event.start < hit.resume) or not ledger.header.rules.caching:
            self.opportunities += 1
        return None

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        request = ledger.requests[event.r]
        self.opportunities += request.prompt_logprobs
        if event.resume >= len(request.tokens):
            sentence = (
                f"Let {event.r} have {count(len(request.tokens), 'token')}. The engine stores no"
                f" logits, so one token must be left to compute; however {event.r} was told to"
                f" resume at {event.resume}: a contradiction."
            )
            line = (
                f"{named(event.r)} resumed at {event.resume} of {len(request.tokens)} tokens; none"
                " is left to compute"
            )
            return (Finding(anomaly="nothing-to-compute", r=event.r, sentence=sentence, line=line),)
        if found := _beyond(ledger, event) or _unwanted(ledger, event):
            return (found,)
        key = _invalidated(ledger, event, "reset")
        if key is None:
            return None
        sentence = (
            f"Let {key.r} have published its {_first(key)} in page {key.page} of group {key.group}."
            f" A reset that returned success ended that key; however {event.r} hit it in step"
            f" {event.step}: a contradiction."
        )
        line = _hit_line(event, key, "which a reset ended")
        return (Finding(anomaly="stale-hit", r=event.r, sentence=sentence, line=line),)


def _is_used(record: PageRecord) -> bool:
    """Whether a page has, or had, what somebody computed, and no zeros since."""
    return not record.zeroed and (record.tenants > 1 or record.node != NOTHING)


def _not_cleared(r: str, page: int, step: int) -> Finding:
    sentence = (
        f"Let {r} begin its text in step {step}. The device goes on from the state that page {page}"
        " holds, which is another text's and was not cleared; however before its first token there"
        " is no state: a contradiction."
    )
    line = f"{named(r)} began its text from what page {page} held, which was not cleared"
    return Finding(anomaly="state-position-skew", r=r, sentence=sentence, line=line)


def _beyond(ledger: Ledger, hit: Hit) -> Finding | None:
    """Return that a hit names pages of some group beyond where it resumes: the request would
    compute into pages that others read.

    An engine that hits a whole prompt is set back by a token, as OpenVINO GenAI is, and one that
    restores captures copies them: both may name the page in which the next token falls. Where that
    page is not copied before it is written, the write is an `aliased-write`.
    """
    whole = hit.resume == len(ledger.requests[hit.r].tokens) - 1
    copied = whole or ledger.header.rules.captures is not None
    for group in ledger.header.local_groups():
        size = group.block_size
        end = hit.resume // size + 1 if copied else -(-hit.resume // size)
        null = ledger.records[group.pool].null
        further = [page for page in hit.pages[group.id][end:] if page >= 0 and page not in null]
        if further:
            sentence = (
                f"Let {hit.r} resume at {hit.resume}, so that what it hit of group {group.id} ends"
                f" with column {end - 1}. However its hit names {page_list(further)} behind that,"
                " over which it is going to compute: a contradiction."
            )
            line = (
                f"{named(hit.r)} resumes at {hit.resume} and hit {count(len(further), 'page')} of"
                f" group {group.id} beyond"
            )
            return Finding(anomaly="hit-beyond-resume", r=hit.r, sentence=sentence, line=line)
    return None


class WindowLiveness(Checker):
    """What lies inside a window is there when the query comes."""

    name = "window-liveness"
    summary = "no page is given back, or left out of a hit, while a window still reaches into it"
    anomalies = ("premature-release", "window-hole")
    answers_for_reads = True

    def not_applicable(self, header: Header) -> str:
        windows = any(map(has_window, header.groups))
        return super().not_applicable(header) or ("" if windows else "no group has a window")

    def handlers(self) -> dict[type, Handler]:
        return {Read: self.on_read}

    def on_read(self, ledger: Ledger, event: Read) -> Found:
        """Count reads of windows that have moved."""
        if event.start > 0 and has_window(ledger.groups[event.group]):
            self.opportunities += 1
        return None


class NoFabricatedSnapshots(Checker):
    """No fabricated snapshots: a state that can be hit was written, at exactly that boundary."""

    name = "no-fabricated-snapshots"
    summary = (
        "no key is ever committed or hit over a page whose state was not written at exactly that"
        " boundary"
    )
    anomalies = ("fabricated-snapshot",)
    answers_for_reads = True

    def handlers(self) -> dict[type, Handler]:
        return {Read: self.on_read, Publish: self.on_publish, StepEnd: self.on_step_end}

    def on_read(self, ledger: Ledger, event: Read) -> Found:
        """Count states that a hit restored."""
        request = ledger.requests[event.r]
        if (
            not request.ran_steps
            and ledger.groups[event.group].kind == "recurrent"
            and event.stop == request.resume
        ):
            self.opportunities += 1
        return None

    def on_publish(self, ledger: Ledger, event: Publish) -> Found:
        if ledger.record(event.group, event.page) is not None:
            before = ledger.before(event)
            state = ledger.groups[event.group].kind == "recurrent"
            self.opportunities += state and before.late
            return (
                (_committed(ledger, event, "fabricated-snapshot", event.step),)
                if state and before.unbacked
                else None
            )
        sentence = (
            f"Let {event.r} have published its {_first(event)} in group {event.group}. The ledger"
            f" says that page {event.page} is the null block, where nothing is ever stored; however"
            " it can now be hit: a contradiction."
        )
        line = f"{key_of(event.r, event.length)} names page {event.page}, the null block"
        return (Finding(anomaly="fabricated-snapshot", r=event.r, sentence=sentence, line=line),)

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Found:
        before = ledger.before(event)
        self.opportunities += sum(
            [ledger.groups[key.group].kind == "recurrent" for key in before.pending]
        )
        if not before.unbacked:
            return None
        return [
            _committed(ledger, key, "fabricated-snapshot", event.step)
            for key in _unbacked(ledger, event, recurrent=True)
        ]


class CommitOrder(Checker):
    """Pending, committed, withdrawn: a key is what its step made of it."""

    name = "commit-order"
    summary = (
        "a key is hit only if the step that writes it comes first; keys of a withdrawn step vanish"
        " before anyone hits them"
    )
    anomalies = ("uncommitted-hit", "partial-commit")
    answers_for_reads = True

    def not_applicable(self, header: Header) -> str:
        return super().not_applicable(header) or (
            "" if header.rules.caching else "prefix caching is off"
        )

    def handlers(self) -> dict[type, Handler]:
        return {StepEnd: self.on_step_end, Publish: self.on_publish, Hit: self.on_hit}

    def on_publish(self, ledger: Ledger, event: Publish) -> Found:
        before = ledger.before(event)
        if not before.late or ledger.groups[event.group].kind == "recurrent":
            return None
        self.opportunities += 1
        unbacked = before.unbacked and ledger.record(event.group, event.page) is not None
        return (_committed(ledger, event, "partial-commit", event.step),) if unbacked else None

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Found:
        before = ledger.before(event)
        self.opportunities += len(before.pending)
        if not before.unbacked:
            return None
        return [
            _committed(ledger, key, "partial-commit", event.step)
            for key in _unbacked(ledger, event, recurrent=False)
        ]

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        key = _invalidated(ledger, event, "withdrawn")
        if key is None:
            return None
        sentence = (
            f"Let {key.r} have been scheduled in step {key.step}, which was to write its"
            f" {_first(key)} into page {key.page} of group {key.group}. It was withdrawn before it"
            f" ran; however {event.r} hit that key in step {event.step}: a contradiction."
        )
        line = _hit_line(event, key, f"although step {key.step} was withdrawn")
        return (Finding(anomaly="uncommitted-hit", r=event.r, sentence=sentence, line=line),)


class Identity(Checker):
    """A prefix is its tokens and their identity, position by position."""

    name = "identity"
    summary = (
        "salt, adapter, multimodal content, weights and kernels are part of a prefix, each from"
        " where it begins"
    )
    anomalies = ("cross-identity-hit",)
    answers_for_reads = True

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, set[object]] = {}

    def handlers(self) -> dict[type, Handler]:
        return {Submitted: self.on_submit, Hit: self.on_hit}

    def on_submit(self, ledger: Ledger, event: Submitted) -> Found:
        media = tuple((item.at, item.hash) for item in event.media)
        others = self._seen.setdefault(event.tokens[0] if event.tokens else -1, set())
        others.add((event.salt, event.adapter, event.kernels, media, ledger.requests.weights))
        if len(others) > 1:
            self.opportunities += 1
        return None

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        key = _invalidated(ledger, event, "outdated")
        if key is None:
            return None
        sentence = (
            f"Let {key.r} have published its {_first(key)} in page {key.page} of group {key.group}."
            f" New weights or a new version of its adapter ended that key; however {event.r} hit it"
            f" in step {event.step}: a contradiction."
        )
        line = _hit_line(event, key, "which new weights ended")
        return (Finding(anomaly="cross-identity-hit", r=event.r, sentence=sentence, line=line),)


def _unwanted(ledger: Ledger, event: Hit) -> Finding | None:
    """Find a hit of a request whose whole prompt is to be computed."""
    if not event.resume or not ledger.requests[event.r].prompt_logprobs:
        return None
    sentence = (
        f"Let {event.r} ask for the log-probability of each token of its prompt, which only what"
        f" computes the token gives. However it resumes at {event.resume} in step {event.step}, and"
        f" nobody computes the first {count(event.resume, 'token')}: a contradiction."
    )
    line = (
        f"{named(event.r)} asks for log-probabilities of its prompt and hit tokens"
        f" [0,{event.resume}), which have none"
    )
    return Finding(anomaly="unwanted-hit", r=event.r, sentence=sentence, line=line)


def _hit_line(hit: Hit, key: Key, why: str) -> str:
    """Say in one line who hit a key that does not count any more."""
    return f"{named(hit.r)} hit page {key.page} by the {key_of(key.r, key.length)}, {why}"


def _invalidated(ledger: Ledger, event: Hit, state: str) -> Key | None:
    return next((key for key in ledger.before(event).invalidated if key.state == state), None)


def _unbacked(ledger: Ledger, event: StepEnd, *, recurrent: bool) -> list[Key]:
    """Return the keys without content that the step commits, except those over the null block,
    reported when published.
    """
    keys = [
        key
        for key in ledger.before(event).unbacked
        if ledger.record(key.group, key.page) is not None
    ]
    return [key for key in keys if (ledger.groups[key.group].kind == "recurrent") == recurrent]


def _first(named: Key | Publish) -> str:
    return f"first {count(named.length, 'token')}"


def _short_of(ledger: Ledger, key: Key | Publish, record: Content) -> str:
    """Say what the page does not have of what the key names."""
    group = ledger.groups[key.group]
    request = ledger.requests[key.r]
    if record.node != NOTHING and record.group not in (key.group, group.source_group):
        return f", for group {record.group}"
    if key.length >= len(request.nodes):
        return (
            f" ({key.r} has {count(len(request.nodes) - 1, 'token')}; what lies behind them are"
            " drafts)"
        )
    start = (
        key.length
        if group.kind == "recurrent"
        else (key.length - 1) // group.block_size * group.block_size
    )
    detail = difference(ledger.trie, record, request.nodes, start, key.length, key.r)
    return f" (of {key.r}, {detail})" if detail else ""


def _committed(ledger: Ledger, key: Key | Publish, anomaly: str, step: int) -> Finding:
    """Return the finding that a step committed a key over other content than the key names."""
    record = ledger.record(key.group, key.page)
    group = ledger.groups[key.group]
    assert record is not None
    what = "the state after" if group.kind == "recurrent" else "the block that ends"
    short = _short_of(ledger, key, record)
    sentence = (
        f"Let {key.r} have published {what} its {_first(key)} in page {key.page} of group"
        f" {key.group}. Step {step} committed it; however the ledger says that the page holds"
        f" {content_of(record)}{short}: a contradiction."
    )
    named_page = f"{key_of(key.r, key.length)} names page {key.page}"
    line = (
        f"{named_page}, whose state is after {count(record.stop, 'token')}"
        if record.state and not record.zeroed and record.node != NOTHING
        else f"{named_page}, which holds {short_content(record)}"
    )
    return Finding(
        anomaly=anomaly,
        r=key.r,
        sentence=sentence,
        line=with_detail(line, short.strip(" (),").removeprefix(f"of {key.r}, ")),
        cause=_cause(ledger, key, record),
    )


def _cause(ledger: Ledger, key: Key | Publish, record: Content) -> str:
    """Return what is behind content that a key does not name, where that can be seen."""
    request = ledger.requests[key.r]
    group = ledger.groups[key.group]
    if record.early:
        return EARLY_COPY
    if isinstance(key, Key) and (cause := key.cause(record)):
        return cause
    hit = request.hit is not None and request.hit.resume == key.length
    if hit and is_rounded_up(ledger, group, record, request):
        return ROUNDED_UP
    return cause_of(record, key, ledger.groups, ledger.requests)
