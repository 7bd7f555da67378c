"""Which configurations an engine takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupKind, GroupSpec, Layout
from cachewitness.workloads.configurations import Configuration

DEFAULT_KINDS: tuple[GroupKind, ...] = ("full", "sliding", "recurrent")
DEFAULT_BLOCK_SIZE = 16
GROUPS_MAX = 4


@dataclass(frozen=True)
class Accepts:
    """The configurations that an engine takes; `run`, `fuzz`, the state machines and pytest stay
    within them. A part that is left empty takes anything.

    `kinds` are the kinds of cache groups. `requires` are those that every layout has; where one is
    drawn, they come first and in this order. `block_sizes` are in tokens; `one_block_size`: all
    groups of a layout have the same one. `groups_max` is how many groups a layout may have.
    `options` are the options of the policy by name, each with the values that it takes (none: any
    value); None: all options are taken.

        Accepts(kinds=("full",), groups_max=1, options={"retention_interval": (0,)})
        Accepts(kinds=("full", "recurrent"), requires=("full", "recurrent"), groups_max=2)
    """

    kinds: Sequence[GroupKind] = ()
    block_sizes: Sequence[int] = ()
    one_block_size: bool = False
    groups_max: int = 0
    options: Mapping[str, Sequence[Any]] | None = None
    requires: Sequence[GroupKind] = ()

    def __post_init__(self) -> None:
        allowed = self.kinds or self.requires
        if other := [kind for kind in self.requires if kind not in allowed]:
            raise UsageError(f"Accepts: `requires` names {other[0]!r}, which `kinds` does not take")
        if self.groups_max and len(self.requires) > self.groups_max:
            raise UsageError(
                f"Accepts: `requires` names {len(self.requires)} kinds, and `groups_max` is"
                f" {self.groups_max}"
            )

    def refusal(self, layout: Layout, options: Mapping[str, Any]) -> str:
        """Return why a configuration is not taken; empty if it is."""
        sizes = list(dict.fromkeys(group.block_size for group in layout.groups))
        if self.groups_max and len(layout.groups) > self.groups_max:
            return f"{len(layout.groups)} groups"
        for group in layout.groups:
            if self.kinds and group.kind not in self.kinds:
                return f"{group.kind} groups"
        for kind in self.requires:
            if all(group.kind != kind for group in layout.groups):
                return f"layouts without {kind} groups"
        for size in sizes:
            if self.block_sizes and size not in self.block_sizes:
                return f"block size {size}"
        if self.one_block_size and len(sizes) > 1:
            return "unequal block sizes"
        return next(
            (f"option {name}" for name, value in options.items() if not self.takes(name, value)), ""
        )

    def takes(self, name: str, value: Any) -> bool:
        """Whether an option is taken with a value."""
        if self.options is None:
            return True
        return name in self.options and (not self.options[name] or value in self.options[name])

    def within(self, configurations: Iterable[Configuration]) -> list[Configuration]:
        """Return those of the configurations that are taken."""
        return [one for one in configurations if not self.refusal(one.layout, one.options)]

    def made_up(self) -> list[Layout]:
        """Return a layout of each kind of group alone, unless several are required, and one of all
        kinds that fit together: what is run on if no known layout is taken.
        """
        kinds = tuple(dict.fromkeys((*self.requires, *(self.kinds or DEFAULT_KINDS))))
        size = self.block_sizes[0] if self.block_sizes else DEFAULT_BLOCK_SIZE
        together = kinds[: self.groups_max or GROUPS_MAX]
        rows = [tuple(self.requires)] if self.requires else [(kind,) for kind in kinds]
        rows += [together] if len(together) > len(rows[0]) else []
        return [layout_of([group_of(kind, size, 2 * size) for kind in row]) for row in rows]


def group_of(kind: GroupKind, size: int, span: int) -> GroupSpec:
    """Return a group whose blocks have `size` tokens; its window or chunk, if its kind has one, has
    `span` tokens.
    """
    window = span if kind == "sliding" else 0
    return GroupSpec(kind, size, window=window, chunk=span if kind == "chunked" else 0)


def layout_of(groups: list[GroupSpec]) -> Layout:
    """Return a layout that is named after its groups: `full16-sliding16w32`."""
    names = [
        f"{group.kind}{group.block_size}" + (f"w{group.window}" if group.window else "")
        for group in groups
    ]
    return Layout(
        name="-".join(names),
        groups=groups,
        story="made up within what the engine takes",
        source="harness/cachewitness/engines/accepts.py",
    )
