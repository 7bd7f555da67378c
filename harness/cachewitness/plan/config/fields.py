"""The fields of a configuration: checked one by one, with a note of every value that the file
leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachewitness._util.errors import UsageError

COUNT_MAX = 2**31 - 1
LAYERS_MAX = 4096
"""No model has more layers; a configuration that says so is refused before anything is made of it.
"""
LATEST = "transformers 5.23.0"
"""The release whose configuration classes the defaults are read from."""


class Fields:
    """One table of a configuration. `defaults` are those of its class in transformers, `notes`
    what was taken from them.
    """

    def __init__(
        self, where: str, raw: Mapping[str, Any], defaults: Mapping[str, int], notes: list[str]
    ) -> None:
        self._where = where
        self._raw = raw
        self._defaults = defaults
        self.notes = notes

    def refused(self, field: str, why: str) -> UsageError:
        """Return the error about a field."""
        return UsageError(f"{self._where}{field}: {why}")

    def says(self, field: str) -> bool:
        """Whether the file has a field, and not as null."""
        return self._raw.get(field) is not None

    def settles(self, field: str) -> bool:
        """Whether a field has a number: the file's, or where the file leaves it out its class's.
        Null is none.
        """
        return self._raw[field] is not None if field in self._raw else field in self._defaults

    def divided(self, field: str, by: str) -> int:
        """Return one field divided by another. Raises UsageError if something is left."""
        whole = self.count(field)
        part = self.count(by)
        if whole % part:
            raise self.refused(field, f"{whole} cannot be divided by {by} {part}")
        return whole // part

    def true(self, field: str) -> bool:
        """Whether the file says yes. Raises UsageError for what is neither yes nor no."""
        value = self._raw.get(field)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.refused(field, f"{_shown(value)} is neither true nor false")

    def auto(self, field: str) -> bool:
        """Whether the file leaves a number to its class, by the word `auto`."""
        return self._raw.get(field) == "auto"

    def count(self, field: str, *, also: str = "", least: int = 1) -> int:
        """Return a whole number up to 2^31 - 1; `also` is another name that configurations give it.

        A number that the file leaves out is the default of the class. Raises UsageError if there is
        none, or for what is no such number.
        """
        named = also if also and field not in self._raw and also in self._raw else field
        if named in self._raw:
            return self._counted(named, self._raw[named], least)
        if field not in self._defaults:
            raise self.refused(field, "missing")
        value = self._defaults[field]
        self.notes.append(
            f"{field}: not in the configuration; {value} is the default of its class ({LATEST})"
        )
        return value

    def _counted(self, field: str, value: Any, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refused(field, f"{_shown(value)} is no whole number")
        if not least <= value <= COUNT_MAX:
            raise self.refused(field, f"{_shown(value)} is not from {least} to {COUNT_MAX}")
        return value

    def word(self, field: str, known: Sequence[str]) -> str | None:
        """Return one of some words; None if the file leaves it out. Raises UsageError for
        anything else.
        """
        value = self._raw.get(field)
        if value is None or (isinstance(value, str) and value in known):
            return value
        raise self.refused(field, f"{_shown(value)} is none of {', '.join(known)}")

    def table(self, field: str) -> Fields | None:
        """Return a table within this one; None if the file leaves it out."""
        value = self._raw.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refused(field, f"{_shown(value)} is no table")
        return Fields(f"{self._where}{field}.", value, self._defaults, self.notes)

    def layers(self) -> int:
        """Return how many layers there are, LAYERS_MAX at most."""
        layers = self.count("num_hidden_layers")
        if layers > LAYERS_MAX:
            raise self.refused("num_hidden_layers", f"{layers} layers; at most {LAYERS_MAX}")
        return layers

    def numbers(self, field: str, first: int, last: int) -> list[int]:
        """Return a list of layers, each named once and from `first` to `last`."""
        values = self._listed(field)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not first <= value <= last:
                raise self.refused(field, f"{_shown(value)} is no layer from {first} to {last}")
        if len(set(values)) < len(values):
            raise self.refused(field, "a layer is named twice")
        return values

    def flags(self, field: str, length: int) -> list[bool]:
        """Return a list of so many zeros and ones."""
        values = self._listed(field)
        if len(values) != length or any(
            type(each) is not int or each not in (0, 1) for each in values
        ):
            raise self.refused(field, f"no list of {length} zeros and ones")
        return [bool(value) for value in values]

    def kinds(self, field: str, known: Mapping[str, str], length: int | None) -> list[str]:
        """Return what each layer keeps, by the words that a list, or the letters of a text, says
        of it.
        """
        value = self._raw.get(field)
        words = (
            list(value)
            if isinstance(value, str) and len(value) <= LAYERS_MAX
            else self._listed(field)
        )
        if length is not None and len(words) != length:
            raise self.refused(field, f"{len(words)} layers, and num_hidden_layers says {length}")
        for number, word in enumerate(words):
            if not isinstance(word, str) or word not in known:
                raise self.refused(
                    f"{field}[{number}]", f"{_shown(word)} is none of {', '.join(known)}"
                )
        return [known[word] for word in words]

    def _listed(self, field: str) -> list[Any]:
        if field not in self._raw:
            raise self.refused(field, "missing")
        value = self._raw[field]
        if not isinstance(value, list) or not value or len(value) > LAYERS_MAX:
            raise self.refused(field, f"{_shown(value)} is no list of 1 to {LAYERS_MAX} layers")
        return value


def _shown(value: Any) -> str:
    """Return a value of a file as a message can hold it."""
    if value is None:
        return "null"
    text = (
        f"a number of {value.bit_length()} bits"
        if isinstance(value, int) and value.bit_length() > 64
        else repr(value)
    )
    return text if len(text) <= 40 else text[:36] + " …"
