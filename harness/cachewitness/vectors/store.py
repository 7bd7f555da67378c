"""Files of vectors: written whole, one vector a line, and refused if a byte of what they say has
changed.

The hash is over the flags and the vectors as compact JSON with sorted keys, so that it does not
depend on white space, and any JSON library can compute it. It is there to find edits by hand and
broken copies: to change an expected value on purpose, fill the file again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import msgspec

from cachewitness import __version__
from cachewitness._util import data, files, reading
from cachewitness._util.errors import UsageError
from cachewitness._util.jsonl import UNREADABLE
from cachewitness.vectors.form import FILES, FORMAT, VERSION, File, Flag, Info, Kind, Source, Vector


def folder() -> Path:
    """Return where the published vectors are."""
    return data.fixtures() / "vectors"


def content_hash(flags: Any, vectors: Any) -> str:
    """Return the hash of plain flags and vectors, as `_info.hash` has it."""
    content = msgspec.json.encode({"flags": flags, "vectors": vectors}, order="sorted")
    return "sha256:" + hashlib.sha256(content).hexdigest()


def file_of(
    kind: Kind, policy: str, source: Source, flags: dict[str, Flag], vectors: Sequence[Vector]
) -> File:
    """Return a file of vectors, its flags cut down to those that the vectors carry."""
    used = {name for vector in vectors for name in vector.flags}
    own = {name: flags[name] for name in sorted(used)}
    hashed = content_hash(msgspec.to_builtins(own), msgspec.to_builtins(vectors))
    info = Info(kind, policy, len(vectors), hashed, f"cachewitness {__version__}", source)
    return FILES[kind](info=info, flags=own, vectors=list(vectors))  # type: ignore[arg-type]


def render(file: File) -> bytes:
    """Return a file as JSON, one flag and one vector a line."""
    encode = msgspec.json.encode
    info = msgspec.json.format(encode(file.info), indent=2)
    flags = b",\n".join(encode(name) + b": " + encode(flag) for name, flag in file.flags.items())
    vectors = b",\n".join(map(encode, file.vectors))
    return b'{"_info": %s,\n"flags": {\n%s\n},\n"vectors": [\n%s\n]}\n' % (info, flags, vectors)


def write(file: File, path: Path) -> None:
    """Write a file, all of it or nothing. Raises UsageError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot be made ({error.strerror})") from None
    files.write(path, [render(file)])


def load(path: Path) -> File:
    """Read a file of vectors.

    Raises UsageError with file and field if it is not one, is of another version, or is not what
    its hash says.
    """
    try:
        raw = msgspec.json.decode(reading.whole(path))
    except UNREADABLE as error:
        raise UsageError(f"{path}: not JSON ({error})") from None
    head = raw.get("_info") if isinstance(raw, dict) else None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise UsageError(f"{path}: no vectors; `_info.format` should be {FORMAT!r}")
    if head.get("version") != VERSION or head.get("kind") not in [*FILES]:
        raise UsageError(
            f"{path}: {FORMAT} version {head.get('version')!r}, kind {head.get('kind')!r}; "
            f"this release reads version {VERSION}, kinds {', '.join(FILES)}"
        )
    if head.get("hash") != content_hash(raw.get("flags"), raw.get("vectors")):
        raise UsageError(
            f"{path}: its content is not what `_info.hash` says; get the file anew, or fill it with"
            " `cachewitness fill`"
        )
    try:
        file = msgspec.convert(raw, FILES[head["kind"]])
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from None
    _check(file, path)
    return file


def _check(file: File, path: Path) -> None:
    seen: set[str] = set()
    for number, vector in enumerate(file.vectors):
        where = f"{path}: $.vectors[{number}]"
        if vector.id in seen:
            raise UsageError(f"{where}.id: {vector.id!r} occurs twice")
        seen.add(vector.id)
        for flag in vector.flags:
            if flag not in file.flags:
                raise UsageError(f"{where}.flags: {flag!r} is not explained in `flags`")
        needed = "refusal" if vector.result == "invalid" else "expected"
        if getattr(vector, needed) is None:
            raise UsageError(f"{where}: a vector that is {vector.result} needs `{needed}`")
    if file.info.count != len(file.vectors):
        raise UsageError(
            f"{path}: `_info.count` is {file.info.count}, and there are {len(file.vectors)} vectors"
        )


def find(paths: Iterable[Path]) -> list[Path]:
    """Return the files that paths name: themselves, or every `.json` below a folder, sorted; `-` is
    standard input.

    Raises UsageError for a path that does not exist.
    """
    found: list[Path] = []
    for path in paths:
        if str(path) == reading.STANDARD_INPUT:
            found.append(path)
            continue
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise UsageError(
                f"{path}: there is no such file or folder ({error.strerror})"
            ) from None
        found += sorted(path.rglob("*.json")) if S_ISDIR(mode) else [path]
    return list(dict.fromkeys(found))
