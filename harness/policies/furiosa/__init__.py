"""Furiosa-LLM's policy: its engine, plan, mutants and test vectors; `policy` registers them."""

NOT_APPLICABLE = {
    "no-fabricated-snapshots": "no recurrent state",
    "replay-boundary-retained": "nothing is thinned out: what is stored goes when its memory is needed",
    "interval-sparsity": "there is no retention interval",
    "withdraw": "nothing is stored before its step has run, so a withdrawn step leaves nothing behind",
}
"""The invariants that do not apply, and why."""
