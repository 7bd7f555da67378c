"""Bugs that break no rule, or that no engine here can have: left out of the catalogue, with the
reason.
"""

from __future__ import annotations

EQUIVALENT: dict[str, tuple[str, str]] = {
    "heads of a free table are evicted before its tails": (
        "sgl-project/sglang#35515, taco-project/FlexKV#195",
        (
            "which cached block goes is a free choice of every policy here: the reuse floor and the"
            " differential follow it"
        ),
    ),
    "recurrent groups ignore the flag that gives an EAGLE unit back": (
        "vllm-project/vllm#48375",
        (
            "recurrent groups are looked up at what attention has given back already; what real"
            " releases leave behind, states over drafts that fell, is `state-after-last-draft` and"
            " `boundary-state-left-behind`"
        ),
    ),
    "a state is copied away before the pass that writes it has ended": (
        "sgl-project/sglang#24221",
        (
            "the device is one stream here: a copy that is asked for too early is"
            " `stored-before-the-step`, one that comes too late `copies-a-step-late`"
        ),
    ),
    "a kernel reads a page beyond what was written, and finds another type's bits": (
        "vllm-project/vllm#35219, vllm-project/vllm#43990",
        "the ledger judges reads of tokens, and nothing asks for what lies behind them",
    ),
    "more is fetched from a tier than was looked up": (
        "vllm-project/vllm#56709",
        (
            "a hit fetches what the look-up found, block by block; what was never stored is"
            " `loads-the-place-beside`"
        ),
    ),
    "keys of an aborted request stay": (
        "vllm-project/vllm#43569",
        (
            "a step that was scheduled runs, also for a request that ends meanwhile; without its"
            " step it is `withdrawn-keys-stay`"
        ),
    ),
    "LMCache's objects can be found while they are written": (
        "LMCache/LMCache#4991",
        (
            "stores are made in the order of steps, before anything scheduled later loads them;"
            " where they are not made it is `lmcache-failed-store-found`"
        ),
    ),
    "entries are stored in Furiosa's tree before the forward pass": (
        "vllm-project/vllm#29387",
        (
            "attention may share what the same step writes, nothing is withdrawn there, and there"
            " is no recurrent state"
        ),
    ),
    "a partial key stays when its block is full": (
        "vllm-project/vllm#49125",
        (
            "the block holds the shorter prefix too, and a hit inside it is copied; states do not"
            " stay in such a block"
        ),
    ),
    "a window's admission is counted by the length of the request": (
        "vllm-project/vllm#55800",
        (
            "the cap is a step's budget, larger than any prompt that a small pool admits; where the"
            " mistake matters it is `needs-counted-for-every-group`"
        ),
    ),
    "a ring of a window starts at the wrong index": (
        "huggingface/transformers#47708",
        "no engine here keeps a window as a ring; rings are in the histories that must pass",
    ),
}
"""What it would be: the real bug, and why it is not planted."""
