"""Marks: rules and boundary cases that a history can reach, by area.

A mark records that something happened at all, which distinguishes a campaign that found nothing
from one that did nothing. Marks are read from events and ledger, never inside an engine, so they
mean the same for every policy. Some marks a policy cannot reach (without a second tier nothing is
fetched from one): a campaign lists the marks that it did not reach, and does not judge them.
"""

from __future__ import annotations

LOOKUP = {
    "miss": "a request found nothing cached",
    "hit on a boundary": "a hit ended where all groups have a block boundary",
    "hit inside a block": "a hit ended inside a block of some group",
    "hit with one token left": "all of a request but its last token was cached",
    "hit on generated tokens": "a hit reached into what another request generated",
    "hit cut short by a group": (
        "some group had more than the others, and the hit was shortened to what all have"
    ),
    "hit of somebody running": "a hit took pages that another request holds",
    "hit in the same step": "a hit on keys of a request that runs in the same step",
    "hit in flight": "a hit on keys of a step that has not ended",
    "third hit of a chain": (
        "a hit on keys of a request that itself had hit keys of somebody in the same step"
    ),
    "hit beside a window shorter than a block": (
        "a hit, and some group's window is shorter than its block"
    ),
    "hit over two groups of full attention": (
        "a hit that two groups of full attention or more had to agree on"
    ),
    "hit given back in some groups": (
        "a hit over groups that a speculative look-up matches further and groups that it does not"
    ),
    "hit over windows of several lengths": (
        "a hit that groups with different windows had to agree on"
    ),
    "hit after preemption": "a request that lost its pages found some of them again",
    "null column skipped": "a hit with columns that nothing needs any more",
    "fetched from tier": "a hit found something in the second tier",
    "copy on write": "a page was copied before a request went on writing into it",
}
PUBLICATION = {
    "published in a block": "a key ended inside a block",
    "published after its step": "a key was published when the step that wrote it was over",
    "duplicate key": "two pages held the same prefix of the same group",
    "snapshot published": "a recurrent state was kept",
    "snapshot restored": "a request resumed from a recurrent state",
    "snapshot of several pages": "a recurrent state took several pages",
    "chunk over several boundaries": (
        "one chunk of a recurrent group crossed two boundaries or more"
    ),
    "chunk ends inside a block": "a chunk of a recurrent group ended between two boundaries",
    "interval kept": "a key lay on the retention interval",
    "replay boundary kept": "a key lay where an exact replay resumes",
    "shared-prefix boundary kept": (
        "a key off the interval was kept before the replay boundary: there others part"
    ),
    "stored in tier": "a page was stored in the second tier",
}
ROOM = {
    "pool exhausted": "no page was free, cached ones counted as free",
    "attention evicted": "a key of full attention was evicted",
    "window evicted": "a key of a window was evicted",
    "snapshot evicted": "a key of a recurrent state was evicted",
    "tier evicted": "a key of the second tier was evicted",
    "page changed groups": "a page went from one group to another",
    "page zeroed": "a page was cleared before use",
    "window moved past a block": "a running request gave back a page of a window",
    "old state given back": "a running request gave back a recurrent state behind it",
    "chunk longer than the window": "one chunk was longer than a window",
    "nobody ran": "a step ran nobody although somebody was waiting",
}
LIFE = {
    "prompt one short": "a prompt of k·b − 1 tokens, for the block size b > 2 of some group",
    "prompt on a boundary": "a prompt of k·b tokens",
    "prompt one over": "a prompt of k·b + 1 tokens, b > 2",
    "prompt in chunks": "a prompt was computed in several steps",
    "decode beside prefill": "one step computed prompts and generated tokens",
    "decode over a boundary": "a generated token began a block",
    "aborted before it ran": "a request was aborted that had computed nothing",
    "aborted mid-prefill": "a request was aborted inside its prompt",
    "aborted in flight": "a request was aborted while a step with it had not ended",
    "finished in flight": "a request finished while a step with it had not ended",
    "preempted mid-prefill": "a request lost its pages inside its prompt",
    "preempted while decoding": "a request lost its pages after its prompt",
    "preempted in flight": "a request lost its pages while a step with it had not ended",
    "aborted with keys to come": "a request was aborted whose keys the step under way was to write",
    "sixteen live": "so many requests were waiting or running",
    "sixty-four live": "so many requests were waiting or running",
    "prompt and its answer": (
        "a prompt was an earlier request's prompt and what it had generated, and no more"
    ),
    "withdrawn": "a request was taken out of a step that it had been scheduled in",
    "withdrawn key ended": "a key ended because the step that was to write it was withdrawn",
}
VERSIONS = {
    "salt": "a request had a salt",
    "adapter": "a request had an adapter",
    "salt like an adapter": "a request had a salt that is some request's adapter",
    "salt and adapter exchanged": (
        "a request had the salt of another as its adapter, and the reverse"
    ),
    "names that join alike": (
        "two requests had other salts or adapters that make one text behind one another"
    ),
    "names in one bit": (
        "two requests had salts of one length that differ in their last character alone"
    ),
    "one token changed": "a prompt differed in one token from an earlier one of the same identity",
    "one token changed at a boundary": (
        "that token was the last of a block, the first, or the one behind that"
    ),
    "two tokens changed": (
        "a prompt differed in two neighbouring tokens from an earlier one of the same identity"
    ),
    "image": "a request had multimodal content",
    "several images": "a request had three images or more",
    "image moved": (
        "a request had the one image of another request at a place a token further or before"
    ),
    "image exchanged": "a request had the images of another but for one content",
    "image sent again": "a request had an image of a content that an earlier one had",
    "gallery": "forty images of one length were in the prompts of a trace",
    "image ends on a boundary": "multimodal content ended on a block boundary",
    "reset": "the keys of the device were forgotten",
    "reset refused": "a reset was refused",
    "reset in flight": "the keys of the device were forgotten while a step had not ended",
    "reset with requests": "a reset came while requests were waiting or running",
    "tier kept in a reset": "the device was reset, and the second tier was not",
    "weights updated": "new weights were loaded",
    "weights updated midway": "new weights were loaded while requests were waiting or running",
    "adapter reloaded": "an adapter was loaded anew",
    "adapter reloaded midway": (
        "an adapter was loaded anew while requests that have it were waiting or running"
    ),
    "adapter reloaded beside others": (
        "an adapter was loaded anew while others were waiting or running, and nobody with it"
    ),
    "prompt again after a reload": (
        "a prompt began like one that had the same adapter before it was loaded anew"
    ),
}
DRAFTS = {
    "run without drafts": "a run that generated had no draft although drafts are verified",
    "run with one draft": "a run had one draft",
    "run with all its drafts": "a run had as many drafts as are verified at most",
    "drafts all stood": "every draft of a run was accepted",
    "drafts partly stood": "some drafts of a run were accepted",
    "drafts all fell": "every draft of a run was rejected",
    "draft rejected over a boundary": "rejected drafts had passed a block boundary",
    "drafts stood over a boundary": "accepted drafts passed a block boundary",
    "step beside one in flight": "a step was scheduled before the last one had ended",
    "step beside two in flight": "a step was scheduled before the last two had ended",
    "nobody ran beside a step in flight": (
        "a step ran nobody while one before it had not ended, and somebody was there"
    ),
}
TRANSFERS = {
    "tier evicted beside a load": (
        "a key of the second tier was evicted while a copy from that tier was under way or due"
    ),
    "load took steps": "a copy from another tier ended in a later step than it began",
    "store took steps": "a copy to another tier ended in a later step than it began",
    "load failed": "a copy from another tier failed",
    "load failed in part": (
        "of what was copied from another tier for a request some came and some did not"
    ),
    "store failed": "a copy to another tier failed",
    "ran beside a load": "somebody ran while a page of the device was filled from another tier",
    "hit after a failed load": "a request found something cached after a load of it had failed",
    "aborted while loading": (
        "a request was aborted while a page of it was filled from another tier"
    ),
    "page filled for nobody": (
        "a copy from another tier ended well when nobody else held the page any more"
    ),
    "reset beside a transfer": (
        "a tier was to be reset while a copy from or to another tier was under way"
    ),
}
SPECIAL = {
    "overtaken by priority": (
        "a request was admitted before one that had come earlier and has a larger priority"
    ),
    "preempted below a priority": (
        "the engine preempted a request while one of a smaller priority was there"
    ),
    "overtaken while a grammar was compiled": (
        "a request was admitted before one that had come earlier and has a grammar"
    ),
    "overtaken beside another adapter": (
        "a request was admitted before one that had come earlier and has another adapter"
    ),
    "adapters in one step": "a step ran requests of two adapters or more",
    "chunk ended before an image": (
        "a chunk of a prompt ended where an image begins, as if the encoder had no room for it"
    ),
    "session went on": "a session whose answer was over got more input",
    "session went on beside a step in flight": "it did so while a step had not ended",
    "session preempted while it waits": "a session lost its pages while it waited for input",
    "session fetched from tier": "a session found something in the second tier",
    "session went on behind its tier": (
        "a session got more input that had found something in the second tier"
    ),
    "log-probabilities of a prompt": "a request asked for log-probabilities of its prompt",
    "log-probabilities of what is cached": (
        "it was computed from its first token on, and its first block was cached"
    ),
    "state saved within a chunk": "a recurrent state was kept before its chunk ended",
    "answer beyond its window": "an answer was longer than the window that its group has over it",
    "hit over chunked attention": "a hit over a group of chunked attention",
    "drafts beside a step in flight": (
        "a step with drafts was scheduled before the last one had ended"
    ),
}
"""What engines reach for which more is drawn than for their policy
(`cachewitness.engines.own_drawing`)."""
AREAS: dict[str, dict[str, str]] = {
    "look-up": LOOKUP,
    "publication": PUBLICATION,
    "room": ROOM,
    "life": LIFE,
    "identity and versions": VERSIONS,
    "drafts and steps in flight": DRAFTS,
    "transfers": TRANSFERS,
    "special requests": SPECIAL,
}
"""Marks and what they mean, by area."""


def drawn(*, own: bool) -> dict[str, dict[str, str]]:
    """Return the areas of which something is drawn: those of special requests for an engine with a
    drawing of its `own` alone.
    """
    return {name: area for name, area in AREAS.items() if own or area is not SPECIAL}


ALL: dict[str, str] = {name: meaning for area in AREAS.values() for name, meaning in area.items()}
