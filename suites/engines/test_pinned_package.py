"""An engine of which one release is driven is found, or it is said in a line why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cachewitness import EngineMissing, UsageError
from cachewitness.engines.pinned_package import PinnedPackage

PACKAGE = PinnedPackage(
    title="Packed",
    name="packed_engine",
    driven="its cache",
    parts="srt",
    folder="srt",
    version_file="version.py",
    release="1.2.0",
    made_by="ci/stage_packed.sh",
    needed=("msgspec",),
)


def tree(folder: Path, version: bytes) -> str:
    """Make a wheel unpacked into a folder, which says its release so."""
    (folder / "packed_engine" / "srt").mkdir(parents=True)
    (folder / "packed_engine" / "version.py").write_bytes(version)
    return str(folder)


@pytest.mark.parametrize("version", ["__version__ = '1.2.0'", "__version__ = version = '1.2.0'"])
def test_a_folder_with_the_release_is_found(tmp_path: Path, version: str) -> None:
    path = tree(tmp_path, version.encode())
    assert PACKAGE.find(path) == tmp_path.resolve()


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (b"__version__ = '1.3.0'", "Packed 1.3.0: its cache is driven in release 1.2.0 alone"),
        (b"# the next has __version__ = '1.2.0'", "Packed unknown: "),
        (b"\xff\xfe", "Packed unknown: "),
    ],
)
def test_another_release_is_refused(tmp_path: Path, version: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        PACKAGE.find(tree(tmp_path, version))


def test_a_folder_without_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no packed_engine/srt there"):
        PACKAGE.find(str(tmp_path))


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(EngineMissing, match=r"ci/stage_packed\.sh makes an environment"):
        PACKAGE.find()
    with pytest.raises(UsageError, match=r"packed_engine\.srt\.cache has no Pool"):
        PACKAGE.part("cache", "Pool")


def test_a_package_that_it_needs_is_named(tmp_path: Path) -> None:
    needy = replace(PACKAGE, needed=("no_such_package",))
    with pytest.raises(EngineMissing, match="needs the package no_such_package"):
        needy.find(tree(tmp_path, b"__version__ = '1.2.0'"))
