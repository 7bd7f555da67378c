"""The heat map of the kill matrix shows what the page's table says."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from cachewitness._util import pages
from cachewitness.sessions.mutants import heat_map

HEAD = (
    "| fault | group | named anomaly (checker) | invariants | differential | tensor | score | reuse floor | seconds |\n"  # noqa: E501
    "|---|\n"
)
PAGE = (
    HEAD
    + "| `one` | A | x (safety-law) | safety-law, ownership | yes | – | – | no | 1 |\n"
    + "| `two` † | A | x (safety-law) | safety-law | no | – | – | no | 1 |\n"
    + "| `three` | J | x (tensors) | no | no | yes | – | no | 1 |\n"
)


def cells(svg: str) -> dict[str, str]:
    """Return the titles of the cells by mechanism and detector."""
    titles = [
        title.text or ""
        for title in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")
    ]
    return {title.split(":")[0]: title for title in titles}


def test_a_cell_counts_the_faults_of_a_mechanism_that_a_detector_sees() -> None:
    """And names them; what no detector sees is there with none."""
    found = cells(heat_map.drawn(PAGE))
    assert found["A, safety-law"] == "A, safety-law: 2 of 2\none\ntwo"
    assert found["A, ownership"] == "A, ownership: 1 of 2\none"
    assert found["A, differential"] == "A, differential: 1 of 2\none"
    assert (
        found["J, tensor"] == "J, tensor: 1 of 1\nthree"
        and found["J, safety-law"] == "J, safety-law: 0 of 1"
    )
    assert "A, score" not in found, "nobody asked it"


def test_the_picture_in_the_docs_is_of_the_page_in_the_docs() -> None:
    page = (pages.folder("results") / "kill-matrix.md").read_text(encoding="utf-8")
    picture = (pages.folder("results") / "kill-matrix.svg").read_text(encoding="utf-8")
    assert picture == heat_map.drawn(page)
    faults = re.findall(r"^\| `([^`]+)`", page, re.M)
    assert f"{len(faults)} seeded faults" in picture and len(faults) > 100


def test_a_page_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no table of faults"):
        heat_map.drawn("# Kill matrix\n")
