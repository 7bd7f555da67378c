"""Which list of known findings belongs to which release, and that none is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util import data
from cachewitness.core.checkers.finding import Finding
from cachewitness.engines.registry import kinds, parse
from cachewitness.report.expected import Entry, Expectations, KnownOf, shipped

VLLM = "vllm-0.33.txt"
CASES = {
    ("vllm", "0.33.0"): (VLLM,),
    ("vllm", "0.33.1.dev3+gabc"): (VLLM,),
    ("vllm", "unknown"): (VLLM,),
    ("vllm", "0.32.0"): ("vllm-0.32.txt",),
    ("vllm", "0.31.1"): ("vllm-0.31.txt",),
    ("vllm", "0.30.0"): ("vllm-0.30.txt",),
    ("vllm", "0.29.0"): ("vllm-before-0.30.txt",),
    ("vllm", "0.34.0"): (),
    ("vllm", "0.9.1"): (),
    ("vllm:connector=simple", "0.33.0"): (VLLM, "vllm-0.33-connectors.txt"),
    ("vllm:connector=offloading-sync", "0.33.0"): (
        VLLM,
        "vllm-0.33-connectors.txt",
        "vllm-0.33-offloading.txt",
        "vllm-0.33-offloading-sync.txt",
    ),
    ("vllm:connector=offloading-chunks", "0.33.0"): (
        VLLM,
        "vllm-0.33-connectors.txt",
        "vllm-0.33-offloading.txt",
    ),
    ("vllm:connector=multi", "0.33.0"): (
        VLLM,
        "vllm-0.33-connectors.txt",
        "vllm-0.33-offloading.txt",
    ),
    ("vllm:connector=lmcache-outputs", "0.33.0"): (VLLM, "vllm-0.33-lmcache.txt"),
    ("vllm:connector=lmcache-chunks", "0.33.0"): (
        VLLM,
        "vllm-0.33-lmcache.txt",
        "vllm-0.33-lmcache-chunks.txt",
    ),
    ("vllm:connector=lmcache-strict", "0.33.0"): (
        VLLM,
        "vllm-0.33-lmcache.txt",
        "vllm-0.33-lmcache-strict.txt",
    ),
    ("vllm:connector=offloading", "0.32.0"): ("vllm-0.32.txt",),
    ("vllm:mutant=window-freed-early", "0.33.0"): None,
    ("real-lmcache", "0.5.6"): ("lmcache-0.5.txt",),
    ("mlx-lm", "0.32.2"): ("mlx-lm-0.32.txt",),
    ("mlx-lm", "0.320.0"): (),
    ("openvino-genai", "2026.4.0.0-3124"): ("openvino-genai-2026.4.txt",),
    ("sglang", "0.5.23"): ("sglang-0.5.txt",),
    ("lmdeploy", "0.18.0"): ("lmdeploy-0.18.txt",),
    ("exllamav3", "1.6.5"): ("exllamav3-1.6.txt",),
    ("onnxruntime-genai:model=llama", "0.18.0"): (),
    ("onnxruntime-genai:answer=left", "0.18.1"): ("onnxruntime-genai-0.18-left.txt",),
    ("onnxruntime-genai:buffer=grown", "0.18.0"): ("onnxruntime-genai-0.18-grown.txt",),
    ("transformers:model=jamba", "5.24.0"): ("transformers-5.24.txt",),
    ("transformers:model=mamba", "5.23.1"): ("transformers-5.23.txt",),
    ("transformers:model=jamba,feed=tokens", "5.24.0"): (),
    ("transformers", "5.24.0"): (),
    ("llama-cpp:model=gemma3", "xllamacpp 2026.10.11549"): ("llama-cpp-2026.10.txt",),
    ("llama-cpp:model=lfm2", "xllamacpp 2026.10.11549"): (),
    ("reference", "1.0"): None,
}


@pytest.mark.parametrize(
    ("asked", "files"), CASES.items(), ids=lambda value: "-".join(value or ["none"])
)
def test_a_release_has_its_list(asked: tuple[str, str], files: tuple[str, ...] | None) -> None:
    """With a planted fault no list is taken, since it might excuse the fault."""
    name, version = asked
    assert parse(name).known_lists(version) == files


def test_every_list_belongs_to_a_release_and_can_be_read() -> None:
    listed = {name for files in CASES.values() for name in files or ()}
    assert listed == {path.name for path in (data.fixtures() / "expected").iterdir()}
    assert {kind.name for kind in kinds().values() if kind.known} == {
        name.partition(":")[0] for (name, _), files in CASES.items() if files
    }
    for name in listed:
        known = shipped("it", [name])
        assert known.entries and {entry.shipped for entry in known.entries} == {name}


def found(anomaly: str) -> Finding:
    return Finding(anomaly=anomaly, checker="c", sentence="s", seq=0, op=0)


def test_a_list_of_the_user_stands_beside_that_of_the_release() -> None:
    """The user's entry comes first; a trace with an anomaly that neither lists is no expected one;
    only the user's entries are judged strictly.
    """
    asked: list[str] = []

    def known(version: str) -> KnownOf:
        asked.append(version)
        entries = (
            Entry(pattern="*", anomaly="leak", reason="known", shipped="list"),
            Entry(pattern="*", anomaly="hung", reason="known", shipped="list"),
        )
        return KnownOf("it 1", ("list",), entries)

    mine = [Entry(pattern="a:*", anomaly="leak", reason="mine")]
    both = Expectations(mine, strict=True, find_known=known)
    assert both.known is None
    both.settle("")
    both.settle("1")
    both.settle("2")
    assert asked == ["1"]
    weighed = {name: both.weigh(name, [found("leak")]) for name in ("a:t@c", "b:t@c")}
    reasons = {name: one[1].reason for name, one in weighed.items() if one and one[1]}
    assert reasons == {"a:t@c": "mine", "b:t@c": "known"}
    worse = both.weigh("b:t@c", [found("leak"), found("stale-hit")])
    assert worse is not None and worse[0].anomaly == "stale-hit" and worse[1] is None
    assert both.broken == [] and both.unmatched == [] and both.passed == []


def test_lists_may_come_with_an_engine(tmp_path: Path) -> None:
    """Of another package: by their whole path."""
    own = tmp_path / "known.txt"
    own.write_text("*:*  leak  # known\n")
    assert shipped("it 1", [str(own)]).entries[0].shipped == str(own)
