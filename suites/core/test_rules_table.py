"""The table of rules in docs/reference/formats.md has every field that a header's rules have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from cachewitness.core.events import (
    Captures,
    KeyEvents,
    Retention,
    Rules,
    Stores,
    TierRules,
    Unkeyed,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "formats.md"
PARTS = {
    "retention": Retention,
    "tier": TierRules,
    "stores": Stores,
    "unkeyed": Unkeyed,
    "captures": Captures,
    "key_events": KeyEvents,
}
WORDS = {"true": True, "false": False, "null": None, "none": [], "all": [], "must": None}
"""How the table says a default; the first word counts."""


def rows() -> dict[str, str]:
    """Return by rule what the table says is its default."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("| rule | meaning | who declares it | default |\n", 1)[1].split("\n\n")[0]
    cells = [re.split(r" \| ", line.strip("| ")) for line in table.splitlines()[1:]]
    assert all(len(row) == 4 and all(row) for row in cells)
    return {row[0].strip("`"): row[3] for row in cells}


def fields(kind: Any, before: str = "") -> dict[str, Any]:
    """Return the default of every field of a struct, a part's as `part.field`."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found[before + field.name] = None if default is msgspec.NODEFAULT else default
        if not before and field.name in PARTS:
            found |= fields(PARTS[field.name], f"{field.name}.")
    return found


def test_every_rule_is_in_the_table() -> None:
    assert rows().keys() == fields(Rules).keys()


def test_the_table_says_the_defaults() -> None:
    declared = fields(Rules)
    for rule, default in rows().items():
        if rule in ("retention", "unkeyed"):
            continue  # its fields are rows of their own
        word = re.split(r"[ :]", default.strip("`"))[0]
        assert WORDS.get(word, int(word) if word.isdigit() else word) == declared[rule], rule
