"""What can be wrong with a name, a number or a header by itself, told in the words of a file:
value, field, reason.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from cachewitness.core.events import Group, Header
from cachewitness.core.trace_format import GroupSpec, Media

PAGES_MAX = 1 << 22
TOKEN_MAX = (1 << 43) - 1
CAPTURE = "capture:"
"""How whoever holds what was captured begins."""
NO_REQUEST = ("copy:", CAPTURE, "store:", "pin:")
"""How holders begin that are no requests."""


class MalformedHistory(Exception):
    """An event refers to something that does not exist, or comes when it cannot; the message
    says what.
    """


def name_problem(r: str, known: Container[str]) -> str:
    """Return what is wrong with the name of a new request; `known` are those before it."""
    if r in known:
        return f"request {r!r} is submitted twice - at `$.r`; give every request a name of its own"
    if not r or r.startswith(NO_REQUEST):
        return (
            f"{r!r} - at `$.r`; a request has a name, which does not begin with"
            f" {' or '.join(NO_REQUEST)}"
        )
    return ""


def media_problem(media: list[Media]) -> str:
    """Return what is wrong with the images of a request."""
    wrong = any(item.at < 0 or item.length < 1 for item in media)
    return "an item before the prompt, or of no token - at `$.media`" if wrong else ""


def spans_problem(group: Group | GroupSpec, where: str) -> str:
    """Return what is wrong with the lengths of a group."""
    spans = {"block_size": group.block_size}
    spans |= {"window": group.window} if group.kind == "sliding" else {}
    spans |= {"chunk": group.chunk} if group.kind == "chunked" else {}
    if getattr(group, "cleared", False) and group.kind != "recurrent":
        return f"cleared - {where}; a recurrent group has states that are cleared"
    answers = getattr(group, "answer_window", 0)
    if answers < 0 or (answers and group.kind != "full"):
        return f"answer_window {answers} - {where}; a full group may have one, of at least 1 token"
    wrong = [
        f"{field} {value} - {where}; a {group.kind} group needs at least 1"
        for field, value in spans.items()
        if value < 1
    ]
    return wrong[0] if wrong else ""


def at_least_nothing(number: int, field: str) -> None:
    """Raise MalformedHistory for a negative number."""
    if number < 0:
        raise MalformedHistory(f"{number} - at `$.{field}`; it is at least 0")


def check_tokens(tokens: list[int]) -> None:
    """Raise MalformedHistory for what is no token id."""
    if tokens and not (min(tokens) >= 0 and max(tokens) <= TOKEN_MAX):
        raise MalformedHistory(f"a token id outside 0 to {TOKEN_MAX} - at `$.tokens`")


def listed(pools: Iterable[int]) -> str:
    """Return pools by their ids."""
    return f"pools {', '.join(map(str, pools))}"


def check_header(header: Header) -> None:
    """Raise MalformedHistory if groups and pools do not fit together."""
    pools = [pool.id for pool in header.pools]
    if not pools or not header.groups:
        raise MalformedHistory(
            "nothing to judge - at `$.pools` or `$.groups`; name at least one pool and one group"
        )
    if len(set(pools)) != len(pools):
        raise MalformedHistory(f"{listed(pools)} - at `$.pools`; give every pool an id of its own")
    for pool in header.pools:
        if not (0 if pool.grows else 1) <= pool.pages <= PAGES_MAX or not all(
            0 <= page < pool.pages for page in pool.null
        ):
            raise MalformedHistory(
                f"pool {pool.id} - at `$.pools`; pages are 1 to {PAGES_MAX}, null pages among them,"
                " 0 only of a pool that grows"
            )
    for index, group in enumerate(header.groups):
        _check_group(header, index, group, pools)


def _check_group(header: Header, index: int, group: Group, pools: list[int]) -> None:
    where = f"at `$.groups[{index}]`"
    if group.id != index:
        raise MalformedHistory(
            f"id {group.id} - {where}; groups are numbered from 0 in the order of the list"
        )
    if group.pool not in pools:
        raise MalformedHistory(
            f"pool {group.pool} does not exist - {where}; the header has {listed(pools)}"
        )
    if group.source_group >= len(header.groups):
        raise MalformedHistory(
            f"of {group.source_group} - {where}; the header has groups 0 to {len(header.groups) - 1}"  # noqa: E501
        )
    if problem := spans_problem(group, where):
        raise MalformedHistory(problem)
