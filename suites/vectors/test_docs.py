"""The pages for those who write a consumer: they name every field, and their example is a published
vector.
"""

from __future__ import annotations

import json
import re

import pytest

from cachewitness._util import data
from cachewitness.vectors import form
from suites.support.published_vectors import files

DOCS = data.fixtures().parent / "docs"
PAGES = (DOCS / "vectors.md", DOCS / "reference" / "vectors.md")
STRUCTS = [
    *(form.Info, form.Source, form.Flag, form.Refusal, form.Facts),
    *(
        form.LookupInput,
        form.LookupExpected,
        form.RetentionInput,
        form.RetentionExpected,
        form.SplitInput,
        form.SplitExpected,
    ),
    *(form.SizingInput, form.SizingExpected, form.LifecycleInput, form.LifecycleExpected),
    *(form.CompactionInput, form.CompactionExpected, form.LookupVector),
]


@pytest.fixture(scope="module")
def text() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_every_field_is_described(text: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"[\w]+", " ".join(re.findall(r"`[^`]+`", prose))))
    for struct in STRUCTS:
        missing = set(struct.__struct_fields__) - named
        assert not missing, (struct.__name__, missing)


def test_every_value_of_a_size_is_described(text: str) -> None:
    for (policy, kind), file in files().items():
        if kind == "sizing" and policy != "furiosa":
            values = {
                name
                for vector in file.vectors
                if vector.expected
                for name in vector.expected.values
            }
            assert all(f"`{name}`" in text for name in values), policy


def test_the_worked_example_is_a_published_vector(text: str) -> None:
    (example,) = [json.loads(line) for line in text.splitlines() if line.startswith('{"id"')]
    raw = json.loads((data.fixtures() / "vectors" / "vllm" / "lookup.json").read_bytes())
    assert example in raw["vectors"]


def test_the_table_says_which_kinds_a_policy_has(text: str) -> None:
    head, *rows = [
        [configuration.strip(" `") for configuration in line.split("|")[1:-1]]
        for line in text.splitlines()
        if re.match(r"\| (kind|`\w+`) \|", line)
    ][:7]
    listed = {
        (policy, row[0])
        for row in rows
        for policy, configuration in zip(head, row, strict=True)
        if configuration == "yes"
    }
    assert listed == set(files())
