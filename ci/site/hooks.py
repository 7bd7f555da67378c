"""What the site needs beside the pages: the order of docs/index.md, and links that lead out of
docs/ into the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
LINK = re.compile(r"(?<=\]\()(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
PAGE = re.compile(r"\[(?P<title>[^]]+)\]\((?P<path>[^)#]+\.md)\)")
LEFT_OUT = ("docs/templates/", "docs/samples/")
"""Folders of docs/ that are no pages (exclude_docs of mkdocs.yml); links to them lead into the
repository."""


def on_config(config: Any) -> Any:
    """Take the order of the pages, and their names, from the index."""
    config["nav"] = [
        {"Documentation": "index.md"},
        *order((DOCS / "index.md").read_text(encoding="utf-8")),
    ]
    return config


def order(index: str) -> list[dict[str, list[dict[str, str]]]]:
    """Return the sections of the index with the pages of each, every page where it stands first."""
    seen: set[str] = set()
    sections = []
    for part in index.split("\n## ")[1:]:
        pages = []
        for link in PAGE.finditer(part):
            path = link["path"]
            title = link["title"]
            if path not in seen and not path.startswith(".."):
                seen.add(path)
                pages.append({title[0].upper() + title[1:]: path})
        sections.append({part.splitlines()[0]: pages})
    return sections


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Lead links out of the pages into the repository."""
    return rewritten(markdown, page.file.src_uri, config["repo_url"])


def on_post_page(output: str, **_: Any) -> str:
    """Keep the theme from asking GitHub for the repository's stars: nothing is fetched from
    elsewhere.
    """
    return output.replace(' data-md-component="source"', "")


def rewritten(markdown: str, page: str, repository: str) -> str:
    """Return a page whose links to what is no page of the site are addresses in the repository."""

    def moved(link: re.Match[str]) -> str:
        if ":" in link["target"]:
            return link[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link["target"]))
        if path.startswith("docs/") and not f"{path}/".startswith(LEFT_OUT):
            return link[0]
        kind = "tree" if (DOCS.parent / path).is_dir() else "blob"
        return f"{repository}/{kind}/main/{path}{link['anchor'] or ''}"

    return LINK.sub(moved, markdown)


def slug(text: str, separator: str) -> str:
    """Return the anchor of a heading as GitHub makes it, since the pages are read there too."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)
