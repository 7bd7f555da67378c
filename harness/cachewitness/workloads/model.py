"""What the layers of a published model keep for each token or sequence: the numbers that sizing
starts from.

A layout's groups are what one engine derives from a model; the table `[model]` beside them is the
model itself, as its published configuration states it: how many layers of which kind, how many
heads of what size, and what a recurrent layer carries from token to token. No engine's block size
is in it, so every system can be planned from one file.

A convolution is described by its channels and its kernel, because engines differ in what they keep
of it: vLLM the last `kernel - 1` inputs, OpenVINO GenAI and TensorRT-Edge-LLM `kernel` columns.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import msgspec

from cachewitness._util.errors import UsageError

Dtype = Literal["bfloat16", "float16", "float32", "float8", "uint8"]
DTYPE_BYTES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "float8": 1, "uint8": 1}
_COUNT_MAX = 2**31 - 1
Verdict = Literal["validated", "supported", "unsupported"]


class _Cache(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True
):
    layers: int


class _Heads(_Cache, frozen=True, kw_only=True):
    kv_heads: int
    head_dim: int
    dtype: Dtype

    @property
    def token_bytes(self) -> int:
        """Return the bytes that one layer keeps for a token."""
        return 2 * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


class Full(_Heads, frozen=True, kw_only=True, tag="full"):
    """Keys and values of every token: `kv_heads` heads of `head_dim`, twice."""


class Sliding(_Heads, frozen=True, kw_only=True, tag="sliding"):
    """Keys and values of the last `window` tokens, the query's own among them."""

    window: int


class _Vectors(_Cache, frozen=True, kw_only=True):
    width: int
    dtype: Dtype

    @property
    def entry_bytes(self) -> int:
        """Return the bytes of one vector in one layer."""
        return self.width * DTYPE_BYTES[self.dtype]


class Latent(_Vectors, frozen=True, kw_only=True, tag="latent"):
    """One vector of `width` for keys and values together (MLA), for every token or one in
    `tokens_per_entry`.

    With a `window` only those of the last so many tokens are kept.
    """

    tokens_per_entry: int = 1
    window: int | None = None


class Indexer(_Vectors, frozen=True, kw_only=True, tag="indexer"):
    """The keys by which a sparse layer chooses what it reads: one for every token, or for
    `tokens_per_entry` of them.
    """

    tokens_per_entry: int = 1


class Compressor(_Vectors, frozen=True, kw_only=True, tag="compressor"):
    """What is under way of the next compressed vector: `width` values for each of the last
    `window` tokens.
    """

    window: int


class Recurrent(_Cache, frozen=True, kw_only=True, tag="recurrent"):
    """One state for each sequence: a convolution's last inputs and a matrix for each head
    (`state_shape`, heads first).

    A short convolution (`short_conv`) has no state beside its inputs, and an empty shape; linear
    attention (`linear`) has no convolution, and a kernel of 1. `state_dtype_fixed`: the checkpoint
    or its class names the state's type, so that it does not follow the convolution's.
    """

    family: Literal["gdn", "kda", "linear", "mamba1", "mamba2", "short_conv"]
    conv_channels: int
    conv_kernel: int
    conv_dtype: Dtype
    state_shape: list[int]
    state_dtype: Dtype
    state_dtype_fixed: bool = False

    @property
    def state_bytes(self) -> int:
        """Return the bytes of one layer's recurrent state, without the convolution's."""
        return (
            math.prod(self.state_shape) * DTYPE_BYTES[self.state_dtype] if self.state_shape else 0
        )

    def conv_bytes(self, columns: int) -> int:
        """Return the bytes of so many columns of one layer's convolution."""
        return columns * self.conv_channels * DTYPE_BYTES[self.conv_dtype]


Cache = Full | Sliding | Latent | Indexer | Compressor | Recurrent
KINDS: dict[str, type[msgspec.Struct]] = {
    "full": Full,
    "sliding": Sliding,
    "latent": Latent,
    "indexer": Indexer,
    "compressor": Compressor,
    "recurrent": Recurrent,
}


_RELEASE = re.compile(r"\d+(\.\d+)*")


def release_key(release: str) -> tuple[int, ...]:
    """Return a release as numbers that compare; raises ValueError if it is not digits and dots."""
    if not _RELEASE.fullmatch(release):
        raise ValueError(f"{release!r} is not a release such as 0.5.6")
    return tuple(int(part) for part in release.split("."))


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a system says of a model, from release `since` on (empty: the first) and before
    `until` (empty: to this day).
    """

    system: str
    verdict: Verdict
    says: str
    source: str
    since: str = ""
    until: str = ""

    def holds_in(self, release: str) -> bool:
        """Return whether it is said of a release."""
        key = release_key(release)
        return (not self.since or release_key(self.since) <= key) and (
            not self.until or key < release_key(self.until)
        )


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published model. `config` is where its configuration lies, `sources` where the numbers were
    read.

    `max_length` is in tokens, and so is `checkpoint_alignment`: the multiple at which the recurrent
    kernel that the layout's groups were worked out for exports states (1: anywhere). `unverified`
    names every number that no source confirms; it is empty only if all are. `kv_cache_dtype` is the
    type, by vLLM's name, in which the checkpoint itself has keys and values kept; empty if it says
    none. `draft_layers` are the attention layers of a drafter that is part of the checkpoint.
    `order` has for every layer of the model, as they come, the places in `caches` of what it keeps;
    empty if nothing says it.
    """

    checkpoint: str
    config: str
    sources: list[str]
    unverified: list[str]
    max_length: int
    caches: list[Cache]
    statements: list[Statement] = []
    checkpoint_alignment: int = 1
    kv_cache_dtype: str = ""
    draft_layers: int = 0
    order: list[list[int]] = []


class _File(msgspec.Struct, frozen=True):
    model: Model


def model_of(raw: Any, path: Path) -> Model:
    """Return the model that a table of a layout file describes.

    Raises UsageError with the file, the field and what is wrong with it.
    """
    try:
        _refuse_unknown(raw)
        model = msgspec.convert({"model": raw}, _File, strict=True).model
        _check(model)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from None
    return model


def refuse_unknown_fields(
    raw: dict[str, Any], struct: type[msgspec.Struct], where: str, *also: str
) -> None:
    """Raise a ValidationError that names the first unknown field of a table, and the nearest
    known one.
    """
    known = [*also, *struct.__struct_fields__]
    for field in raw:
        if field not in known:
            raise msgspec.ValidationError(
                f"unknown field {field!r} - at `{where}`; {choices(field, known)}"
            )


def choices(word: str, known: Collection[str]) -> str:
    """Return the nearest of some known words, if any is near, and all of them."""
    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"known: {', '.join(known)}"


def _refuse_unknown(raw: Any) -> None:
    # What is no table, or has no kind, is left to msgspec, which says so.
    if not isinstance(raw, dict):
        return
    refuse_unknown_fields(raw, Model, "$.model")
    for where, row in _rows(raw, "caches"):
        kind = row.get("kind")
        if not isinstance(kind, str):
            continue
        if kind not in KINDS:
            raise msgspec.ValidationError(
                f"unknown kind {kind!r} - at `{where}.kind`; {choices(kind, KINDS)}"
            )
        refuse_unknown_fields(row, KINDS[kind], where, "kind")
    for where, row in _rows(raw, "statements"):
        refuse_unknown_fields(row, Statement, where)


def _rows(raw: dict[str, Any], name: str) -> list[tuple[str, dict[str, Any]]]:
    rows = raw.get(name)
    listed = enumerate(rows if isinstance(rows, list) else [])
    return [(f"$.model.{name}[{index}]", row) for index, row in listed if isinstance(row, dict)]


def _check(model: Model) -> None:
    for count in ("max_length", "checkpoint_alignment"):
        _check_count(getattr(model, count), f"$.model.{count}")
    for field in ("checkpoint", "config"):
        if not getattr(model, field):
            raise msgspec.ValidationError(f"empty - at `$.model.{field}`")
    if not model.caches:
        raise msgspec.ValidationError(
            "empty - at `$.model.caches`; name what at least one kind of layer keeps"
        )
    for index, cache in enumerate(model.caches):
        where = f"$.model.caches[{index}]"
        for field, value in msgspec.structs.asdict(cache).items():
            if isinstance(value, int) and not isinstance(value, bool):
                _check_count(value, f"{where}.{field}")
        if isinstance(cache, Recurrent):
            # A short convolution keeps its inputs alone; every other recurrent layer has a state
            # beside them.
            if bool(cache.state_shape) == (cache.family == "short_conv"):
                wrong = "out of place" if cache.state_shape else "empty"
                raise msgspec.ValidationError(
                    f"{wrong} - at `{where}.state_shape`; heads first, none for short_conv alone"
                )
            for axis, size in enumerate(cache.state_shape):
                _check_count(size, f"{where}.state_shape[{axis}]")
    _check_order(model)
    for index, statement in enumerate(model.statements):
        for field in ("since", "until"):
            release = getattr(statement, field)
            if release and not _RELEASE.fullmatch(release):
                where = f"$.model.statements[{index}].{field}"
                raise msgspec.ValidationError(
                    f"{release!r} - at `{where}`; a release such as 0.5.6"
                )


def _check_order(model: Model) -> None:
    """Refuse an order that does not name every layer of every kind once."""
    places = Counter(place for layer in model.order for place in layer)
    layers = Counter({place: cache.layers for place, cache in enumerate(model.caches)})
    if model.order and places != layers:
        raise msgspec.ValidationError(
            "places of `caches`, each as often as it has layers - at `$.model.order`"
        )


def _check_count(value: int, where: str) -> None:
    if not 1 <= value <= _COUNT_MAX:
        raise msgspec.ValidationError(
            f"{value} - at `{where}`; it is at least 1 and at most {_COUNT_MAX}"
        )
