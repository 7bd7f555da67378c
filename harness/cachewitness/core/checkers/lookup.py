"""The longest prefix that the engine's own keys allow, computed from the law and not from any
engine's look-up.

The keys are those that the engine published and has not unpublished, so whatever it chose to evict
is respected.
"""

from __future__ import annotations

from cachewitness.core.attention_span import needed_lengths
from cachewitness.core.events import Group, UnpublishReason
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.requests import RequestRecord
from cachewitness.core.trace_format import GroupKind

HOW_ENDED: dict[UnpublishReason, str] = {
    "evict": "evicted",
    "replace": "evicted",
    "reset": "reset",
    "version": "reset",
    "retention": "thinned",
}
"""Why what had a key cannot be hit; a key that was withdrawn named nothing."""


def has_usable_key(
    ledger: Ledger, group: int, node: int, *, device_alone: bool = False, unusable: bool = False
) -> bool:
    """Whether some page of the group, or of one that keeps copies of its pages, carries a usable
    key for the prefix.

    With `unusable`, any key counts that the engine has not unpublished, whatever is behind it.
    """
    pages = ledger.keys.published[group].get(node)
    for key in pages.values() if pages else ():
        if unusable or key.usable:
            return True
    copies = ledger.stored[group]
    return (
        not device_alone
        and bool(copies)
        and any(has_usable_key(ledger, other, node, unusable=unusable) for other in copies)
    )


def how_lost(ledger: Ledger, request: RequestRecord, length: int) -> str:
    """Return why a request cannot resume at a length, in tokens, that had been computed before:
    `evicted`, `reset`, `thinned` or `unkept`, as of the first key that is missing.
    """
    for group in ledger.local:
        for needed in needed_lengths(group, length):
            if not has_usable_key(ledger, group.id, request.nodes[needed]):
                return _how_ended(ledger, group.id, request.nodes[needed])
    return "unkept"


def _how_ended(ledger: Ledger, group: int, node: int) -> str:
    keys = ledger.keys.published[group].get(node, {}).values()
    if any(key.state in ("reset", "outdated") for key in keys):
        return "reset"
    ended = ledger.keys.ended[group].get(node)
    if ended is not None and ended.reason in HOW_ENDED:
        return HOW_ENDED[ended.reason]
    return "thinned" if thinned_out(ledger, group) else "unkept"


def thinned_out(ledger: Ledger, group: int) -> bool:
    """Whether retention, as the engine declares it, keeps only part of what is written of a
    group.
    """
    retention = ledger.header.rules.retention
    return retention.interval is not None and group in retention.groups


class Lookup:
    """Answers, for one request at one moment, where each group could resume. All lengths are in
    tokens.
    """

    def __init__(
        self,
        ledger: Ledger,
        request: RequestRecord,
        *,
        last_block: bool = False,
        device_alone: bool = False,
        unusable: bool = False,
    ) -> None:
        """With `last_block`, a window of one token, which reads nothing cached, asks for its last
        block all the same.

        With `device_alone`, copies in other tiers do not count. With `unusable`, keys count that
        must not be hit.
        """
        self._ledger = ledger
        self._request = request
        self._rules = ledger.header.rules
        self._device_alone = device_alone
        self._unusable = unusable
        self._last_block = last_block
        # Whose prompt's log-probabilities are asked for is looked up nowhere.
        limit = 0 if request.prompt_logprobs else len(request.tokens) - 1
        self._limit = limit // self._rules.alignment * self._rules.alignment
        self._runs = {group.id: self._run(group) for group in ledger.local if group.kind == "full"}

    def longest_common(self) -> int:
        """Return the longest length at which every group can resume; 0 if there is none.

        A multiple of the declared alignment that leaves a token to compute; where speculation gives
        tokens back, attention must be held so many tokens further than the request resumes.
        """
        groups = [(group, self._dropped(group)) for group in self._ledger.local]
        alignment = self._rules.alignment
        position = self._limit - self._rules.eagle_drop_tokens
        if groups:
            position = self._lowered(position, groups[0][0])
        while position > 0:
            if all(self._resumes(group, position, dropped) for group, dropped in groups):
                return position
            position -= alignment
        return 0

    def longest_of_each(self, kind: GroupKind | None = None) -> set[int]:
        """Return, for each group, or each of a kind, the longest length at which that group alone
        can resume.

        Where speculation gives tokens back, there is another one for each: where what it gives back
        is held as well.
        """
        groups = [group for group in self._ledger.local if kind in (None, group.kind)]
        return {
            self._longest(group, dropped)
            for group in groups
            for dropped in {0, self._dropped(group)}
        }

    def _longest(self, group: Group, eagle_drop_tokens: int) -> int:
        position = self._lowered(self._limit, group)
        while position > 0 and not self._resumes(group, position, eagle_drop_tokens):
            position -= self._rules.alignment
        return max(position, 0)

    def _lowered(self, position: int, group: Group) -> int:
        """Return from which position on to ask a group, stepping down: full attention ends
        within a block of its whole ones.
        """
        over = position - self._runs[group.id] - group.block_size + 1 if group.kind == "full" else 0
        return (
            position - -(-over // self._rules.alignment) * self._rules.alignment
            if over > 0
            else position
        )

    def _run(self, group: Group) -> int:
        """Return how many tokens of whole blocks a full-attention group holds from the start."""
        size = group.block_size
        nodes = self._request.nodes
        length = 0
        while length + size < len(nodes) and self._has_usable_key(group, nodes[length + size]):
            length += size
        return length

    def _dropped(self, group: Group) -> int:
        return (
            self._rules.eagle_drop_tokens
            if group.id in (self._rules.eagle_groups or (group.id,))
            else 0
        )

    def _resumes(self, group: Group, position: int, eagle_drop_tokens: int) -> bool:
        nodes = self._request.nodes
        if group.kind == "recurrent":
            return self._has_usable_key(group, nodes[position])
        upto = position + min(eagle_drop_tokens, group.block_size)
        if upto >= len(nodes):
            return False
        if group.kind == "full":
            whole = upto // group.block_size * group.block_size
            return self._runs[group.id] >= whole and (
                upto == whole or self._has_usable_key(group, nodes[upto])
            )
        lengths = needed_lengths(group, position)
        if upto > position:
            lengths += needed_lengths(group, upto)
        if self._last_block and group.kind == "sliding":
            lengths.append(upto)
        return all(self._has_usable_key(group, nodes[length]) for length in lengths)

    def _has_usable_key(self, group: Group, node: int) -> bool:
        if node not in self._ledger.keys.published[group.id] and not self._ledger.stored[group.id]:
            return False
        return has_usable_key(
            self._ledger, group.id, node, device_alone=self._device_alone, unusable=self._unusable
        )
