"""Every command in a `console` block of the documentation prints what stands below it there."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from suites.support import consoles
from suites.support.sampled import of_all

PAGES = sorted(
    path
    for path in (consoles.ROOT / "docs").rglob("*.md")
    if "```console" in path.read_text(encoding="utf-8")
)
SESSIONS = [
    (page, session)
    for page in PAGES
    for session in consoles.sessions(page.read_text(encoding="utf-8"))
]
NEEDED = {"": (), "toy": ("torch",), "score": ("torch", "lm_eval", "aiohttp")}
"""What the commands of a block import, by the word behind `console`."""
TOOLS = {"cpp": "g++"}
"""What they run, by the same word."""


LONG = {
    "your-engine.md-A working engine, a fault, and what it looks like-plain": of_all(
        "test_cli_new.py makes one too"
    ),
    "tutorial-cpp.md-From a wrong driver to a right one-cpp": of_all(
        "test_driver_cpp.py runs the same driver"
    ),
    "walkthroughs.md-OpenVINO GenAI-plain": of_all("test_run.py runs its scenarios"),
    "walkthroughs.md-TensorRT-Edge-LLM-plain": of_all("test_engine.py runs its scenarios"),
    "walkthroughs.md-Furiosa-LLM-plain": of_all("test_engine.py runs its scenarios"),
    "walkthroughs.md-LMCache-plain": of_all("test_engine.py and test_plan.py ask the same"),
    "walkthroughs.md-OpenVINO GenAI-toy": of_all("test_run.py runs its scenarios", toy=True),
    "walkthroughs.md-LMCache-score": of_all(
        "suites/parity/scores/test_policies.py and test_serve.py ask the same", toy=True
    ),
    "tutorial-scores.md-From a damaged cache to a mended one-score": of_all(
        "suites/parity/scores/test_mutants.py scores faults", toy=True
    ),
    "tutorial-scores.md-Your server, by its URL-score": of_all(
        "suites/parity/scores/test_serve.py scores a server", toy=True
    ),
}
"""The sessions that take longest, and what tests the same where some are taken of many."""


def named(page: Path, session: consoles.Session) -> Any:
    """Return a session as a test's parameters, by the name of its page, its section and what it
    needs.
    """
    name = f"{page.name}-{session.section.partition(':')[0]}-{session.extra or 'plain'}"
    return pytest.param(page, session, id=name, marks=LONG.get(name, ()))


@pytest.mark.parametrize(("page", "session"), [named(page, session) for page, session in SESSIONS])
def test_the_page_shows_what_is_printed(
    page: Path, session: consoles.Session, tmp_path: Path
) -> None:
    """A section's commands, one after the other in one shell; `…` on the page stands for what
    differs from run to run.
    """
    if session.extra in TOOLS and shutil.which(TOOLS[session.extra]) is None:
        pytest.skip(f"needs {TOOLS[session.extra]}")
    missing = [name for name in NEEDED.get(session.extra, ()) if find_spec(name) is None]
    if missing:
        pytest.skip(
            f"needs the extra `{session.extra}`: pip install 'cachewitness[{session.extra}]'"
        )
    wrong = consoles.run(session, tmp_path)
    assert not wrong, f"{page.name}, {session.section}:\n" + "\n".join(wrong)


def test_the_sessions_that_take_long_are_there() -> None:
    assert {named(page, session).id for page, session in SESSIONS} >= set(LONG)


def test_every_document_has_a_walkthrough() -> None:
    """Those that the page on coverage maps, in its order."""
    pages = [
        (consoles.ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in ("reference/coverage.md", "systems/walkthroughs.md")
    ]
    mapped, walked = (re.findall(r"^## (.+?):", page, re.MULTILINE) for page in pages)
    assert mapped == walked


def wrongs(block: str, tmp_path: Path) -> list[str]:
    """Return what is wrong with a page of one block."""
    (session,) = consoles.sessions(f"# A page\n\n## A section\n\n```console\n{block}```\n")
    return consoles.run(session, tmp_path)


@pytest.mark.parametrize(
    "block",
    [
        "$ export A=1\n$ echo $A; echo b >&2\n1\nb\n",
        "$ printf 'a\\nb\\nc\\nd\\n'\na\n…\nd\n",
        "$ echo took 0.3 s of 5\ntook … s of 5\n",
        "$ false\n$ echo $?\n1\n",
        "$ cat > file <<END\n> a\n>\n> b\n> END\n$ cat file\na\n\nb\n",
        "$ cachewitness --version\ncachewitness…\n",
        "$ sleep 1000 &\n",
    ],
)
def test_a_right_page_passes(block: str, tmp_path: Path) -> None:
    """What is exported stays, what is left out is marked, here-documents go on, what still runs
    in the end is ended.
    """
    assert wrongs(block, tmp_path) == []


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("$ echo a\nb\n", "--- shown\nb\n--- printed\na\n"),
        ("$ echo a\n", "--- printed\na\n"),
        ("$ true\na\n", "--- shown\na\n"),
        ("$ printf 'a\\nb\\n'\na\n", "--- printed\na\nb\n"),
        ("$ printf 'a\\nb\\n'\n…\na\n", "--- printed\na\nb\n"),
        ("$ false\n", "ended with status 1, and no `$ echo $?` follows"),
        ("$ false\n$ echo $?\n2\n", "--- shown\n2\n--- printed\n1\n"),
        ("$ exit 0\n$ echo a\na\n", "$ exit 0\n  was not reached"),
    ],
)
def test_a_wrong_page_is_found(block: str, problem: str, tmp_path: Path) -> None:
    """Another output, too much, too little, a status that is not shown, a command that never
    ran.
    """
    found, *_ = wrongs(block, tmp_path)
    assert problem in found


def test_a_block_without_a_command_is_refused() -> None:
    """It would be a block that nothing tests."""
    with pytest.raises(ValueError, match=r"begins with a line that begins with '\$ '"):
        consoles.sessions("```console\ncachewitness --version\n```\n")
