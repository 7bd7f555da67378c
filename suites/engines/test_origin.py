"""What a command names that installs this package again: the place that it came from."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from cachewitness import __version__
from cachewitness.cli import invoke
from cachewitness.engines import origin
from cachewitness.engines.origin import PLACEHOLDER, Origin, read

COMMIT = "0123abc"
CLONED = {"url": "https://github.com/o/cw", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}
RELEASE = f"cachewitness=={__version__}"


@pytest.mark.parametrize(
    ("noted", "here", "elsewhere"),
    [
        (None, f"cachewitness[toy]=={__version__}", RELEASE),
        (
            CLONED,
            f"cachewitness[toy] @ git+https://github.com/o/cw@{COMMIT}",
            f"git+https://github.com/o/cw@{COMMIT}",
        ),
        ({"url": "file:///a%20b", "dir_info": {}}, "/a b[toy]", PLACEHOLDER),
        (
            {"url": "https://me:secret@example.org/x.git", "vcs_info": {"vcs": "git"}},
            "cachewitness[toy] @ git+https://me:secret@example.org/x.git@main",
            PLACEHOLDER,
        ),
        (
            {"url": "file:///x.whl", "archive_info": {}},
            "cachewitness[toy] @ file:///x.whl",
            PLACEHOLDER,
        ),
    ],
)
def test_the_index_is_named_only_if_it_came_from_there(
    noted: dict[str, object] | None, here: str, elsewhere: str
) -> None:
    found = read(json.dumps(noted)) if noted else Origin()
    assert (found.requirement("toy"), found.elsewhere()) == (here, elsewhere)


@pytest.mark.parametrize("noted", ["[]", "{}", '{"url": 7}', "{"])
def test_a_note_that_is_none_is_refused(noted: str) -> None:
    with pytest.raises(ValueError):
        read(noted)


@pytest.mark.parametrize(
    ("remote", "elsewhere"),
    [
        ("git@github.com:o/cw.git", "git+https://github.com/o/cw@main"),
        ("https://github.com/o/cw", "git+https://github.com/o/cw@main"),
        ("https://token@github.com/o/cw", PLACEHOLDER),
        ("/srv/cw", PLACEHOLDER),
    ],
)
def test_a_checkout_is_named_by_what_it_was_cloned_from(
    remote: str, elsewhere: str, tmp_path: Path
) -> None:
    """Never with what a user put into the address to be let in."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "remote", "add", "origin", remote], check=True)
    assert Origin(folder=str(tmp_path)).elsewhere() == elsewhere


@pytest.mark.parametrize(
    ("found", "source"),
    [(Origin(), RELEASE), (Origin(folder="/nowhere"), PLACEHOLDER), (read(json.dumps(CLONED)), "")],
)
def test_a_generated_workflow_installs_what_can_be_installed(
    found: Origin, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "origin", lambda: found)
    assert invoke(["new", "engine", str(tmp_path / "my-cache")]) == 0
    text = (tmp_path / "my-cache/.github/workflows/cache-gate.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["env"] == {"CACHEWITNESS": source or found.elsewhere()}
    assert ("fill in OWNER" in text) == (source == PLACEHOLDER)
