"""The catalogue of anomalies: what can be wrong, which rule it breaks, what follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from cachewitness.core.checkers.finding import Finding

Harm = Literal["answers", "service", "work"]
"""What an anomaly takes from whoever is served, the gravest first: right answers, an answer at all,
or no more than computed tokens, room and figures."""


class Anomaly(msgspec.Struct, frozen=True):
    """`invariant` is the rule that it contradicts; `implies` what a user of the engine will see,
    and `harms` what of.
    """

    name: str
    invariant: str
    implies: str
    harms: Harm = "answers"


CATALOGUE: tuple[Anomaly, ...] = (
    Anomaly(
        "stale-hit",
        "every read lies on pages whose content is of exactly this request's prefix",
        "the answer continues from somebody else's tokens",
    ),
    Anomaly(
        "cross-identity-hit",
        "a prefix is its tokens and their identity: salt, adapter, multimodal content, weights,"
        " kernels",
        "one tenant's, adapter's or image's cache answers for another",
    ),
    Anomaly(
        "use-after-free",
        "a request reads only pages that it holds",
        "the answer depends on the request that gets the page next",
    ),
    Anomaly(
        "premature-release",
        "no page is given back while a position in it is still needed",
        "attention inside the window reads a recycled page",
    ),
    Anomaly(
        "window-hole",
        "a hit covers the whole window in front of the position where the request resumes",
        "attention inside the window reads a page that was never restored",
    ),
    Anomaly(
        "group-misalignment",
        "every group can resume at the position that the hit reports",
        "one group continues, another starts from nothing: garbled output on hits only",
    ),
    Anomaly(
        "hit-beyond-resume",
        "a hit names pages of each group as far as the request resumes, and none behind",
        "a request computes into pages that others read",
    ),
    Anomaly(
        "unwanted-hit",
        "a request that asks for the log-probabilities of its prompt restores no token of it",
        "tokens without a log-probability: an evaluation by likelihood counts a part of the text",
    ),
    Anomaly(
        "state-position-skew",
        "a recurrent state is resumed at exactly the position that it was taken at",
        "the last tokens are applied twice, or never",
    ),
    Anomaly(
        "fabricated-snapshot",
        "no key is committed or hit over a page whose state was not written at exactly that"
        " boundary",
        "later requests resume from a state that nobody computed",
    ),
    Anomaly(
        "uncommitted-hit",
        "a key is hit only if the step that writes it comes first, and vanishes if that step is"
        " withdrawn",
        "a request reads content that was never written",
    ),
    Anomaly(
        "partial-commit",
        "when a step ends, every attention key that it committed is backed by content",
        "later requests attend to positions that were never computed",
    ),
    Anomaly(
        "lost-replay-boundary",
        "of a prefilled prompt every group keeps what a replay needs to resume at the last aligned"
        " boundary",
        "an exact replay computes everything again",
        "work",
    ),
    Anomaly(
        "lost-shared-prefix-boundary",
        "where an engine declares that it keeps states at shared-prefix boundaries, retention drops"
        " none that was written",
        "every sibling behind the first computes the shared prefix again",
        "work",
    ),
    Anomaly(
        "over-dense-retention",
        "of what was written, only what the retention interval and the reachable boundaries allow"
        " is kept",
        "correct output, fewer hits: what nobody resumes from fills the pool and evicts live"
        " prefixes",
        "work",
    ),
    Anomaly(
        "leak",
        "whatever has no holder is free or cached",
        "the pool shrinks until nothing is admitted",
        "service",
    ),
    Anomaly(
        "double-free",
        "a page is given back once by each of its holders",
        "two requests get the same page",
    ),
    Anomaly(
        "reference-count",
        "the reference count of a page rises with each holder that takes it",
        "a page that a request reads counts as free, and the next request is given it",
    ),
    Anomaly(
        "aliased-write",
        "nobody overwrites content that another holder of the page still needs",
        "a running request's cache changes under it",
    ),
    Anomaly(
        "late-release",
        "pages that no run of a request is to read are given back before its next step, where the"
        " engine declares it; what a step in flight reads stays until it has ended",
        "correct output, less room: requests are preempted and prefixes evicted that need not be",
        "work",
    ),
    Anomaly(
        "undropped-hit",
        "where a speculative look-up gives tokens back, a request resumes so many tokens in front"
        " of what was matched",
        "correct output, fewer drafts that stand: the drafter reads what was made of other tokens",
        "work",
    ),
    Anomaly(
        "missed-checkpoint",
        "a prompt that was computed has a recurrent state at the last boundary at which an exact"
        " replay can resume, and at shared-prefix boundaries that are kept, where the engine"
        " declares that its chunks end there",
        "correct output, no reuse: chunks end where no hit can, and no state can be kept",
        "work",
    ),
    Anomaly(
        "lost-hit",
        "a request resumes no earlier than at the longest prefix that every group holds",
        "correct output, no reuse: the cache is inert",
        "work",
    ),
    Anomaly(
        "forgotten-prefix",
        "what a finished request computed of its prompt, or had a key, is hit as long as nobody was"
        " given its pages",
        "correct output, no reuse: the cache is inert, or drops what it need not",
        "work",
    ),
    Anomaly(
        "key-owed",
        "a whole block that a request computed which ended as intended has a key, in its page or in"
        " another, unless the engine declares that it keys no such blocks",
        "correct output, no reuse: what was computed can be hit by nobody",
        "work",
    ),
    Anomaly(
        "lost-store",
        "what the engine declares that it stores in a second tier is found there later, if its"
        " request ended as intended and there was room",
        "the second tier stores less than it says: what the device forgets is computed again",
        "work",
    ),
    Anomaly(
        "lost-capture",
        "a declared capture is made, found by whoever begins as it does, and given up for want of"
        " places alone",
        "every request behind the first computes the system prompt again",
        "work",
    ),
    Anomaly(
        "needless-eviction",
        "no key ends for want of room while a page without a key is free, unless the engine"
        " declares why",
        "correct output, fewer hits: the cache forgets what it had room for",
        "work",
    ),
    Anomaly(
        "wrong-victim",
        "who is evicted is nobody's page and the one that the declared order puts first",
        "correct output, fewer hits: what is used most goes first",
        "work",
    ),
    Anomaly(
        "malformed-key-event",
        "an event for routers names a group, a parent that was told, and a hash for each block of"
        " its tokens",
        "a router cannot tell which part of a prompt is cached, and drops or misreads the event",
        "work",
    ),
    Anomaly(
        "false-key-event",
        "what routers are told to be stored has a key over these tokens, behind this parent, of"
        " this identity, and what is told to be gone was there",
        "a router sends requests to where their prompt is not cached, or away from where it is",
        "work",
    ),
    Anomaly(
        "lost-key-event",
        "when a step has ended, routers have been told of every key that began or ended",
        "a router believes in blocks that are gone, or does not know of blocks that are there",
        "work",
    ),
    Anomaly(
        "false-statistics",
        "what operators and clients are told of pages in use and of tokens found is what happened",
        "dashboards, autoscalers and bills go by figures that are not the engine's",
        "work",
    ),
    Anomaly(
        "no-progress",
        "a feasible request advances within a stated number of steps",
        "requests wait for ever",
        "service",
    ),
    Anomaly(
        "vain-preemption",
        "a request that an engine preempts by itself gives a page back at once that nobody else"
        " holds",
        "requests lose what they computed, one after the other, and nobody gains by it",
        "work",
    ),
    Anomaly(
        "refused-reset",
        "a reset is refused only while a page is held, or a step that does something or a copy is"
        " under way",
        "whoever resets before new weights asks again for ever, or goes on with the old keys",
        "service",
    ),
    Anomaly(
        "nothing-to-compute",
        "a hit leaves at least one token to compute unless the engine stores logits",
        "an empty batch, or logits of the wrong position",
    ),
    Anomaly(
        "divergence",
        "the engine does what the reference does, free choices apart",
        "the engine follows another policy than the one it declares",
        "work",
    ),
    Anomaly(
        "silent-divergence",
        "a device that reads the right pages computes the logits of the model's definition",
        "wrong answers although every block table is right: a kernel, a copy or a state of the"
        " device is at fault",
    ),
    Anomaly(
        "answer-differs",
        "an answer is the one that the engine gives without its cache, within rounding",
        "another answer on cache hits, or beside other requests, than alone",
    ),
    Anomaly(
        "baseline-differs",
        "without its cache an engine answers a prompt alike when it is asked again, and beside"
        " others, within rounding",
        "an answer depends on who else is served (padding that goes into recurrent states), or on"
        " which of several servers gives it",
    ),
    Anomaly(
        "answer-missing",
        "who asks and does not go away gets an answer, unless the engine declares that it gives"
        " requests up",
        "a client waits in vain",
        "service",
    ),
    Anomaly(
        "foreign-restore",
        "a request restores no more of its prompt than a request of the same identity has computed",
        "one tenant's cache answers for another, or tokens that nobody computed",
    ),
    Anomaly(
        "lost-repeat",
        "who asks with an equal prompt at once behind its answer has something restored, where the"
        " engine declares it, or is told why not; and nobody has nothing restored of whose prompt"
        " the engine says that it keeps a state that fits",
        "prompts that are asked again are computed again, though every answer is right",
        "work",
    ),
    Anomaly(
        "engine-crashed",
        "an engine carries out every operation that a trace may ask for",
        "the server goes down",
        "service",
    ),
    Anomaly(
        "hung",
        "an engine answers every operation within its deadline",
        "the server answers nobody any more",
        "service",
    ),
)

DISAGREEMENTS: tuple[Anomaly, ...] = (
    Anomaly(
        "unfelt-fault",
        "a read that the ledger calls wrong changes the logits, unless it is of a class that"
        " cannot",
        "nothing of the engine yet: the ledger accuses falsely, or the comparison sees too little",
    ),
)
"""What two detectors of the harness hold against each other: failures of the harness, not of an
engine."""

COMPARISONS: tuple[Anomaly, ...] = (
    Anomaly(
        "cached-divergence",
        "logits and final states, of cold and of cached runs, are those of the model's definition"
        " in float64, within rounding",
        "another answer with the cache than without it, or a wrong one either way",
    ),
    Anomaly(
        "unequal-bits",
        "a run in the chunks of another repeats every bit of it",
        "what the cache gave back is not what was put in, or the engine does not repeat itself",
    ),
)
"""What comparing a cached run with cold ones finds; no ledger is asked."""

ANSWERS: tuple[Anomaly, ...] = (
    Anomaly(
        "changed-answer",
        "where an engine without its cache answers alike twice, no answer with it differs beyond a"
        " near-tie",
        "another answer with the cache than without it",
    ),
    Anomaly(
        "lost-answers",
        "a cache costs no right answers that chance does not explain",
        "the model scores worse with the cache than without it",
    ),
)
"""What comparing the answers of two arms finds."""

BY_NAME = {anomaly.name: anomaly for anomaly in CATALOGUE + DISAGREEMENTS + COMPARISONS + ANSWERS}


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order in which they matter: what makes answers wrong in front of what
    costs the service, and that in front of what costs work; of each, the earliest first.

    So nothing that merely costs work hides another prompt's content behind it.
    """
    return sorted(findings, key=gravity)


def gravity(finding: Finding) -> int:
    """Return 0 for what makes answers wrong, more for what harms less."""
    known = BY_NAME.get(finding.anomaly)
    return get_args(Harm).index(known.harms) if known else 0
