"""Readers can find every page: the index links the guides, results/index.md the results, a
system's page its notes; and no link of a page or of the README leads nowhere.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")

SYSTEMS = sorted(ROOT.glob("harness/cachewitness/systems/*/README.md"))
NOT_YET: set[Path] = set()
"""Pages that are linked and not written yet."""


def links(page: Path) -> list[str]:
    """Return where the links of a page lead, code blocks left out."""
    return LINK.findall(
        re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    )


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        for heading in headings
    }


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere: to no file, or to no heading of a file."""
    found = []
    for link in links(page):
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        path = (page.parent / target).resolve() if target else page
        exists = path.exists() or path in NOT_YET
        if not exists or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            found.append(link)
    return found


def linked(page: Path) -> set[Path]:
    """Return what a page links."""
    return {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}


def parent(page: Path) -> Path:
    """Return the page on which a reader looks for a page: the index of its folder, the page of
    its system, or the index of the documentation.
    """
    notes = page.name.removesuffix("-notes.md")
    if notes != page.name:
        return page.with_name(f"{notes}.md")
    index = page.with_name("index.md")
    return index if index != page and index.exists() else DOCS / "index.md"


def test_every_page_is_linked_where_a_reader_looks_for_it() -> None:
    """A page that no index links is found by nobody; a page below a folder may be linked by the
    folder.
    """
    pages = [page for page in PAGES if page != DOCS / "index.md"]
    lost = [page for page in pages if not linked(parent(page)) & {page, *page.parents}]
    assert [str(page.relative_to(ROOT)) for page in lost] == []


@pytest.mark.parametrize(
    "page",
    [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *SYSTEMS],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of this repository, and to a heading where the link names one."""
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """The check is able to fail: a missing file, a missing heading; what stands in a code block
    is no link.
    """
    page = tmp_path / "page.md"
    page.write_text(
        "# A title\n\n[a](#a-title) [b](#b) [c](page.md#a-title) [d](no.md)\n\n```\n[e](no.md)\n"
        "```\n"
    )
    assert broken(page) == ["#b", "no.md"]


def test_the_readme_is_short() -> None:
    """Whoever sees it for the first time reads it to the end."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120
