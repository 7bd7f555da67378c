"""The page on faults in vLLM's own code is read back, so that what it has is not measured again."""

from __future__ import annotations

from benchmarks.vllm_coverage import ROOT
from benchmarks.vllm_tests_page import COUNT, read

PAGE = ROOT / "docs/results/vllm-faults.md"


def test_what_a_page_says_is_read_back_and_a_fault_by_another_name_is_hunted_again() -> None:
    """Its row keeps what vLLM's tests make of it."""
    text = PAGE.read_text(encoding="utf-8")
    known = read(text)
    name = "vllm-adapter-left-out"
    assert known[f"here {name}"] == ["fuzz-0-40", 3805, 1.5]
    assert known[f"{COUNT} core {name}"] == 2
    other = read(text.replace("cross-identity-hit, identity", "stale-hit, identity"))
    assert f"here {name}" not in other and other[f"{COUNT} core {name}"] == 2
    assert read("| a | b |\n") == {}
