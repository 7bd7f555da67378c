"""The documentation as a site: in the index's order, and no link of it leads out of the pages
into nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("hooks", ROOT / "ci" / "site" / "hooks.py")
assert SPEC and SPEC.loader
hooks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(hooks)
HOME = "https://example.org/x"


def test_every_guide_is_in_the_navigation_once_in_the_order_of_the_index() -> None:
    """Measurements, references and the systems' notes are behind the pages that link them."""
    sections = hooks.order((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert next(name for section in sections for name in section) == "Everybody"
    paths = [
        path
        for section in sections
        for pages in section.values()
        for page in pages
        for path in page.values()
    ]
    assert len(paths) == len(set(paths))
    own = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    own = {path for path in own if not path.startswith(("samples/", "templates/"))}
    behind = ("results/", "reference/")
    guides = {path for path in own if not path.startswith(behind) and "-notes." not in path}
    assert guides - {"index.md"} <= set(paths) <= own


def test_links_out_of_the_pages_lead_into_the_repository() -> None:
    """A file, a folder, samples; a page and an address stay as they are."""
    text = (
        "[a](../ci/gate.sh) [b](../fixtures) [c](samples/) [d](score.md#run) [e](https://a.b/c)"
        " ![f](report.png) [g](#here)"
    )
    assert (
        hooks.rewritten(text, "index.md", HOME)
        == f"[a]({HOME}/blob/main/ci/gate.sh) [b]({HOME}/tree/main/fixtures)"
        f" [c]({HOME}/tree/main/docs/samples) [d](score.md#run) [e](https://a.b/c)"
        " ![f](report.png) [g](#here)"
    )
    assert (
        hooks.rewritten("[a](../index.md) [b](../../ci/gate.sh#L3)", "recipes/engine.md", HOME)
        == f"[a](../index.md) [b]({HOME}/blob/main/ci/gate.sh#L3)"
    )


def test_a_page_asks_nothing_of_github() -> None:
    """The theme's script fetches the stars of a repository for the link that is marked so."""
    link = '<a class="md-source" data-md-component="source" href="https://github.com/x/y">'
    assert (
        hooks.on_post_page(f"<p>{link}</p>")
        == '<p><a class="md-source" href="https://github.com/x/y"></p>'
    )


def test_anchors_are_those_that_github_makes() -> None:
    assert hooks.slug("What a step costs, `triton`: 3 × 2", "-") == "what-a-step-costs-triton-3--2"
