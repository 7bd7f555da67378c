"""What a speculative look-up gives back.

A drafter such as EAGLE needs the hidden states of the last block in front of where its request goes
on, and no cache keeps those. So a look-up of such an engine matches a block more than it uses, and
the request computes that block again (`eagle_drop_tokens`). One that uses all that it matched
resumes too late: the target model's answer is right, and its drafter reads keys and values that
were made of other tokens, so fewer of its drafts stand.
"""

from __future__ import annotations

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.lookup import has_usable_key
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.wording import count, named
from cachewitness.core.events import Group, Header, Hit
from cachewitness.core.ledger.ledger import Ledger

KEPT = "undropped-hit"


class SpeculativeDrop(Checker):
    """Attention is cached so many tokens further than a request resumes as its drafter needs.

    A second tier that is asked apart gives back what it declares (`TierRules.drops`).
    """

    name = "speculative-drop"
    summary = (
        "where a speculative look-up gives tokens back, attention has keys for so many tokens more"
        " than the request resumes at"
    )
    anomalies = (KEPT,)
    lacks = "a look-up that gives tokens back"

    def not_applicable(self, header: Header) -> str:
        if own := super().not_applicable(header):
            return own
        if not header.rules.caching:
            return "prefix caching is off"
        if not header.rules.eagle_drop_tokens:
            return "no look-up gives tokens back (`eagle_drop_tokens` of the engine's rules)"
        return "" if any(map(_matched_whole, header.local_groups())) else "there is no attention"

    def handlers(self) -> dict[type, Handler]:
        return {Hit: self.on_hit}

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Look for the keys of what was given back, whatever became of what they name."""
        rules = ledger.header.rules
        if event.tier != "local" and rules.tier is not None and not rules.tier.drops:
            return None
        nodes = ledger.requests[event.r].nodes
        for group in ledger.local:
            if group.id not in (rules.eagle_groups or (group.id,)) or not _matched_whole(group):
                continue
            self.opportunities += 1
            if not event.resume:  # it keeps nothing
                continue
            beyond = event.resume + min(rules.eagle_drop_tokens, group.block_size)
            # Where hits end inside a block, the key of a longer part of it matches too.
            whole = -(-beyond // group.block_size) * group.block_size
            if not any(
                _matched(ledger, group, node, event.step) for node in nodes[beyond : whole + 1]
            ):
                return (_kept(event, group, beyond),)
        return None


def _matched_whole(group: Group) -> bool:
    return group.kind == "full"


def _matched(ledger: Ledger, group: Group, node: int, step: int) -> bool:
    """Whether a look-up of this step can have matched a key: that may have ended since."""
    if has_usable_key(ledger, group.id, node, unusable=True):
        return True
    return any(
        (ended := ledger.keys.ended[owner].get(node)) is not None and ended.step >= step
        for owner in (group.id, *ledger.stored[group.id])
    )


def _kept(event: Hit, group: Group, beyond: int) -> Finding:
    many = count(beyond - event.resume, "token")
    sentence = (
        f"Let {event.r} be admitted in step {event.step} and resume at {event.resume}. A"
        f" speculative look-up gives {many} of what it matches back, so it matched {beyond}."
        f" However group {group.id} has no key for the first {beyond} tokens of {event.r}: a"
        " contradiction."
    )
    line = (
        f"{named(event.r)} resumed at {event.resume}, which leaves none of the {many} that a"
        " speculative look-up gives back"
    )
    return Finding(anomaly=KEPT, r=event.r, sentence=sentence, line=line)
