"""Whether every parameter of a tiny model was drawn: behind zeros, or a norm of ones, a layer
vanishes or does not tell its channels apart, and with it what a cache does wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

Parameter = tuple[str, Sequence[float]]
"""A name, and the values in any order."""

KINDS = {"F32": "f", "BF16": "H"}


def constant(parameters: Iterable[Parameter]) -> list[str]:
    """Return the names of parameters of more than one value whose values are all equal.

    Raises AssertionError if there are no parameters.
    """
    walked = {name: len(values) > 1 and min(values) == max(values) for name, values in parameters}
    assert walked
    return [name for name, same in walked.items() if same]


def weights_in(checkpoint: Path) -> Iterator[Parameter]:
    """Yield the parameters of a file of safetensors: numbers in float32, the bits of those in
    bfloat16.

    Its layout: the length of a header, 8 bytes; the header, JSON; the data.
    https://huggingface.co/docs/safetensors
    """
    content = checkpoint.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8:begin]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        yield name, memoryview(content[begin + first : begin + end]).cast(KINDS[entry["dtype"]])
