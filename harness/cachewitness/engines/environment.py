"""The environment variables that systems read: what they set, and where a value came from.

A policy names the variables that its system's documents tell a reader to export
(`PolicyKind.variables`). A run, a fuzz campaign and a plan read them here, so that they agree; an
option that is given beside one outranks it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cachewitness._util.errors import UsageError


@dataclass(frozen=True)
class Variable:
    """An environment variable of a system, and the option of the policy that it sets.

    `read(environment)` returns the option's value, None if the variable is unset; it raises
    ValueError, naming the variable, for a text that the system refuses. `unit` is what is counted,
    `unset` what holds without it, `remark` what else its user should know.
    """

    name: str
    option: str
    unit: str
    unset: str
    read: Callable[[Mapping[str, str]], Any]
    remark: str = ""

    def value(self) -> Any:
        """Return what the environment says, None if the variable is unset. Raises UsageError for
        what the system refuses.
        """
        try:
            return self.read(os.environ)
        except ValueError as error:
            raise UsageError(f"environment: {error}; while it is unset, {self.unset}") from None


@dataclass(frozen=True)
class Exported:
    """A variable that is set, and its value."""

    variable: Variable
    value: Any

    @property
    def setting(self) -> str:
        """The option that it stands for, as the command line takes it."""
        return f"{self.variable.option}={self.value}"

    @property
    def origin(self) -> str:
        """Where the value comes from, in one line."""
        variable = self.variable
        remark = f"; {variable.remark}" if variable.remark else ""
        return (
            f"{self.setting} ({variable.unit}) from the environment variable"
            f" {variable.name}{remark}"
        )


def exported(variables: Collection[Variable], given: Collection[str]) -> list[Exported]:
    """Return those of the variables that are set, but for those whose option is among the given
    ones.

    Raises UsageError, naming the variable, for a text that the system refuses.
    """
    unanswered = [variable for variable in variables if variable.option not in given]
    found = [Exported(variable, variable.value()) for variable in unanswered]
    return [one for one in found if one.value is not None]
