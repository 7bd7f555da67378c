"""The published files: written by the references, whole, explained, and of the published
schemas.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cachewitness._util import data
from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.engines import policy as policies
from cachewitness.vectors import fill, store
from cachewitness.vectors.form import FILES
from suites.support.published_vectors import files

PATHS = store.find([store.folder()])


@pytest.mark.parametrize("policy", fill.asked_policies())
def test_filling_again_writes_the_same_bytes(policy: str, tmp_path: Path) -> None:
    """If not: `cachewitness fill`, and say in the changelog why expected values changed."""
    written = [path for path, _ in fill.write(policy, tmp_path)]
    published = store.folder() / policy
    assert {path.name for path in written} == {path.name for path in published.iterdir()}
    for path in written:
        assert path.read_bytes() == (published / path.name).read_bytes(), path.name


def test_every_policy_and_every_kind_is_there() -> None:
    assert {policy for policy, _ in files()} == set(fill.asked_policies()) == set(policies.names())
    assert {kind for _, kind in files()} == set(FILES)
    assert {kind for policy, kind in files() if kind == "lifecycle"} and all(
        (p, "lifecycle") in files() for p in fill.asked_policies()
    )
    assert sum(file.info.count for file in files().values()) >= 300
    assert {vector.result for file in files().values() for vector in file.vectors} == {
        "valid",
        "acceptable",
        "invalid",
    }


def test_ids_are_unique_readable_and_say_their_kind() -> None:
    for (policy, kind), file in files().items():
        seen = [vector.id for vector in file.vectors]
        assert len(set(seen)) == len(seen), policy
        for name in seen:
            assert name.startswith(f"{kind}/") and re.fullmatch(r"[\w./\[\]=,-]+", name), name


@pytest.mark.parametrize("policy", fill.asked_policies())
def test_every_flag_is_carried_by_a_vector(policy: str) -> None:
    """A bug that no vector hunts is not claimed to be hunted."""
    carried = {
        flag for (owner, _), file in files().items() if owner == policy for flag in file.flags
    }
    assert carried == set(fill.questions(policy).flags)


def _raw(path: Path) -> Any:
    return json.loads(path.read_bytes())


SCHEMAS = sorted((data.fixtures() / "schemas").iterdir())


def _validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(_raw(data.fixtures() / "schemas" / f"vectors-{kind}.schema.json"))


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name.removesuffix(".schema.json"))
def test_every_schema_is_one(path: Path) -> None:
    """A schema that the draft does not allow would accept anything."""
    Draft202012Validator.check_schema(_raw(path))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_file_fits_its_schema(path: Path) -> None:
    raw = _raw(path)
    assert [error.message for error in _validator(raw["_info"]["kind"]).iter_errors(raw)] == []


def test_a_schema_refuses_what_is_no_vector() -> None:
    """The check above is able to fail."""
    raw = _raw(store.folder() / "vllm" / "lookup.json")
    validator = _validator("lookup")
    for path, value in (
        (("input", "tokens"), "64"),
        (("expected", "resume"), None),
        (("result",), "maybe"),
        (("input", "cached"), [1]),
    ):
        broken = copy.deepcopy(raw)
        place = broken["vectors"][0]
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        (error,) = validator.iter_errors(broken)
        assert error.json_path.startswith("$.vectors[0]"), path


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_hash_is_one_that_any_json_library_can_compute(path: Path) -> None:
    """As docs/vectors.md says: compact, keys sorted, UTF-8, over flags and vectors."""
    raw = _raw(path)
    content = {"flags": raw["flags"], "vectors": raw["vectors"]}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert raw["_info"]["hash"] == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


BROKEN = {
    "a changed answer": (
        lambda text: text.replace('"resume":32', '"resume":48', 1),
        "is not what `_info.hash` says",
    ),
    "a changed comment": (
        lambda text: text.replace('"comment":"', '"comment":"no ', 1),
        "is not what `_info.hash` says",
    ),
    "another version": (
        lambda text: text.replace('"version": 3', '"version": 1', 1),
        "this release reads version 3",
    ),
    "another format": (
        lambda text: text.replace("cachewitness.vectors", "cachewitness.trace", 1),
        "`_info.format` should be",
    ),
    "half a file": (lambda text: text[: len(text) // 2], "not JSON"),
    "a wrong count": (
        lambda text: re.sub(r'"count": \d+', '"count": 7', text, count=1),
        "`_info.count` is 7",
    ),
    "an unknown kind": (
        lambda text: text.replace('"kind": "lookup"', '"kind": "lookups"', 1),
        "kind 'lookups'",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_refused_in_one_line(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever edits a file by hand, or gets half of one, is told so; exit code 4."""
    change, message = BROKEN[fault]
    text = (store.folder() / "vllm" / "lookup.json").read_text(encoding="utf-8")
    assert change(text) != text
    path = tmp_path / "lookup.json"
    path.write_text(change(text), encoding="utf-8")
    assert invoke(["consume", str(path)]) == 4
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(path) in error and message in error, error


def _refilled(tmp_path: Path, change: Any) -> Path:
    """Write a changed file whose hash is right."""
    raw = _raw(store.folder() / "vllm" / "lookup.json")
    change(raw)
    raw["_info"]["hash"] = store.content_hash(raw["flags"], raw["vectors"])
    path = tmp_path / "lookup.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


FAULTS = {
    "an id that occurs twice": (
        lambda raw: raw["vectors"][1].update(id=raw["vectors"][0]["id"]),
        r"\$\.vectors\[1\]\.id: .* occurs twice",
    ),
    "a flag without a meaning": (
        lambda raw: raw["vectors"][0].update(flags=["bad-luck"]),
        r"'bad-luck' is not explained",
    ),
    "a valid vector without an answer": (
        lambda raw: raw["vectors"][0].pop("expected"),
        r"valid needs `expected`",
    ),
    "a length in words": (
        lambda raw: raw["vectors"][0]["input"].update(tokens="64"),
        r"Expected `int`, got `str`",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_contradicts_itself_is_refused(fault: str, tmp_path: Path) -> None:
    change, message = FAULTS[fault]
    with pytest.raises(UsageError, match=message):
        store.load(_refilled(tmp_path, change))
