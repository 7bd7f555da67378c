"""Traces by their content: each is kept once, under the digest of its bytes, in a folder or in a
store that fsspec reaches.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from cachewitness._util.errors import EngineMissing, UsageError

END = ".trace.jsonl"


class Store(Protocol):
    """Keeps content by its digest."""

    def put(self, content: bytes) -> str:
        """Keep some content and return its digest. Raises UsageError if it cannot be written."""

    def get(self, digest: str) -> bytes:
        """Return what was kept under a digest. Raises UsageError if it is not there, or is
        something else.
        """

    def place(self, digest: str) -> str:
        """Return where it lies."""


def opened(name: str) -> Store:
    """Return the store of that name: a folder, or a URL such as `s3://bucket/traces`."""
    return _Reached(name) if "://" in name else _Folder(Path(name))


def digest_of(content: bytes) -> str:
    """Return the digest under which content is kept."""
    return sha256(content).hexdigest()[:32]


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, content: bytes) -> str:
        digest = digest_of(content)
        path = Path(self.place(digest))
        try:
            if path.is_file() and path.read_bytes() == content:
                return digest
            path.parent.mkdir(parents=True, exist_ok=True)
            number, part = tempfile.mkstemp(
                dir=path.parent, suffix=".part"
            )  # several may write it at once
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(content)
                Path(part).replace(path)
            except OSError:
                with suppress(OSError):
                    Path(part).unlink()
                raise
        except OSError as error:
            raise UsageError(
                f"traces {self._folder}: {path.name} cannot be written ({error.strerror})"
            ) from None
        return digest

    def get(self, digest: str) -> bytes:
        path = self.place(digest)
        try:
            return _checked(Path(path).read_bytes(), digest, path)
        except OSError as error:
            raise UsageError(
                f"traces {self._folder}: {path} cannot be read ({error.strerror})"
            ) from None

    def place(self, digest: str) -> str:
        return str(self._folder / digest[:2] / f"{digest}{END}")


class _Reached:
    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            install = "pip install 'cachewitness[cluster]'"
            raise EngineMissing(
                f"traces {url}: a store behind a URL needs fsspec; {install}", install
            ) from None
        self._url = url.rstrip("/")
        try:
            self._system: Any = fsspec.core.url_to_fs(self._url)[0]
        except (ImportError, ValueError, OSError) as error:
            raise UsageError(f"traces {url}: cannot be reached ({error})") from None

    def put(self, content: bytes) -> str:
        digest = digest_of(content)
        place = self.place(digest)
        try:
            self._system.makedirs(place.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(place, content)
        except Exception as error:  # each store raises its own
            raise UsageError(
                f"traces {place}: cannot be written ({type(error).__name__}: {error})"
            ) from None
        return digest

    def get(self, digest: str) -> bytes:
        place = self.place(digest)
        try:
            content: bytes = self._system.cat_file(place)
        except Exception as error:  # each store raises its own
            raise UsageError(
                f"traces {place}: cannot be read ({type(error).__name__}: {error})"
            ) from None
        return _checked(content, digest, place)

    def place(self, digest: str) -> str:
        return f"{self._url}/{digest[:2]}/{digest}{END}"


def _checked(content: bytes, digest: str, place: str) -> bytes:
    if digest_of(content) != digest:
        raise UsageError(f"{place}: is not what was written there; its content has another digest")
    return content
