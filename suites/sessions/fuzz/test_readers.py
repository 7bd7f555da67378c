"""Whatever stands in a file or a body that somebody else made, its reader takes it or says in one
line what is wrong with it.

`READER_INPUTS=N` tries N inputs more on each reader, other ones in every run, and keeps one that
fails; `ci/stage_readers.sh` tries a million in all.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random, SystemRandom

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from suites.support import mangled, readers

INPUTS = int(os.environ.get("READER_INPUTS", "0"))
SLOWEST_S = 20.0
"""No input of a few kilobytes may keep a reader for longer, on a busy machine."""
edits = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 1 << 20), st.integers(0, 1 << 20)),
    min_size=1,
    max_size=5,
)


def tried(reader: readers.Reader, content: bytes, folder: Path, *, further: bool) -> bool:
    """Hand an input to a reader; return whether it was taken."""
    began = time.process_time()
    problem = readers.verdict(reader, reader.before(content) if further else content, folder)
    assert time.process_time() - began <= SLOWEST_S
    return not problem


@pytest.mark.parametrize("name", readers.READERS)
def test_a_good_file_is_taken(name: str, tmp_path: Path) -> None:
    """Also after what is done to a changed one, so that what is refused below is refused for its
    change.
    """
    reader = readers.READERS[name]
    good = reader.good()
    assert good
    for content in good:
        assert [
            readers.verdict(reader, one, tmp_path) for one in (content, reader.before(content))
        ] == ["", ""]


@pytest.mark.parametrize("name", readers.READERS)
def test_a_changed_file_is_taken_or_refused(name: str, tmp_path: Path) -> None:
    """Never with another exception, a crash of a checker, or markup on a page."""
    reader = readers.READERS[name]
    good = reader.good()

    @settings(max_examples=30, deadline=None, database=None, derandomize=True)
    @given(st.sampled_from(range(len(good))), edits, st.booleans())
    @example(0, [(6, 0, number) for number in range(3)], False)
    def one(seed: int, changes: list[mangled.Edit], further: bool) -> None:
        tried(reader, mangled.mangled(good[seed], changes), tmp_path, further=further)

    one()


@pytest.mark.skipif(not INPUTS, reason="ci/stage_readers.sh")
@pytest.mark.parametrize("name", readers.READERS if INPUTS else ["a million"])
def test_many_changed_files_are_taken_or_refused(name: str, tmp_path: Path) -> None:
    reader = readers.READERS[name]
    seed = SystemRandom().getrandbits(64)
    good = reader.good()
    rng = Random(seed)
    taken = 0
    for number in range(INPUTS):
        content = mangled.mangled(
            rng.choice(good), [mangled.drawn(rng) for _ in range(rng.choice((1, 1, 2, 3, 5)))]
        )
        further = rng.random() < 0.7
        try:
            taken += tried(reader, content, tmp_path, further=further)
        except Exception:
            kept = Path(f"reader-{name}-{seed:x}-{number}").absolute()
            kept.write_bytes(reader.before(content) if further else content)
            print(f"the input is kept in {kept}")
            raise
    print(f"{name}: {INPUTS:,} inputs, {taken:,} of them taken, seed {seed:x}")
    assert 0 < taken < INPUTS or INPUTS < 1_000


def test_what_is_no_refusal_is_found(tmp_path: Path) -> None:
    """A reader that raises what it did not mean to is not taken for one that refuses; nor is a
    page with markup of the file.
    """

    def careless(path: Path) -> object:
        return {}[path.read_bytes()]

    def drawn(path: Path) -> None:
        readers.inert(path.read_bytes())

    with pytest.raises(KeyError):
        readers.verdict(readers.Reader(careless, list, "x"), b"a", tmp_path)
    for page in (mangled.HTML, "<script>a</script></script>"):
        with pytest.raises(AssertionError):
            readers.verdict(readers.Reader(drawn, list, "x"), page.encode(), tmp_path)
    assert readers.verdict(readers.Reader(drawn, list, "x"), b"<script>a</script>", tmp_path) == ""


def test_the_same_changes_make_the_same_file() -> None:
    """So that what is found can be found again; every kind of change changes something."""
    good, *_ = readers.READERS["traces"].good()
    for kind in range(9):
        made = {mangled.mangled(good, [(kind, where, 3 * where + 1)]) for where in range(40)}
        assert len(made) > 5 and made == {
            mangled.mangled(good, [(kind, where, 3 * where + 1)]) for where in range(40)
        }
