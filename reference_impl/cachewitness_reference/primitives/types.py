"""Names for the integers and bytes that a cache policy passes around.

A block id, a group id and a number of tokens are all small integers, and confusing two of them is a
silent fault. Each has a type of its own; a type checker tells them apart, and nothing is paid for
it when the code runs.
"""

from __future__ import annotations

from typing import NewType

BlockId = NewType("BlockId", int)
"""A physical page of the pool, counted from 0."""

GroupId = NewType("GroupId", int)
"""A cache group: the layers that share one block table, counted from 0."""

Position = NewType("Position", int)
"""A number of tokens from the start of a request: the length of a prefix."""

BlockHash = NewType("BlockHash", bytes)
"""The digest of a whole prefix that ends on a hash boundary, everything that identifies it
included."""
