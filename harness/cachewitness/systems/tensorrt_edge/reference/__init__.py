"""TensorRT-Edge-LLM's policy: its engine, plan, mutants and test vectors; `policy` registers
them.
"""

_NO_KEYS = "the manager has no keys: a row is named by its request"
NOT_APPLICABLE = dict.fromkeys(
    ("commit-order", "reuse-floor", "replay-boundary-retained", "interval-sparsity"), _NO_KEYS
)
"""The invariants that do not apply, and why."""
