"""Furiosa-LLM's vectors: how memory is split between two pools, what a match may reuse, what
cleanup keeps, whole lives.

The document gives no formula for the split, so a split is `acceptable`: another one may be right as
well. What it says of matches and of cleanup leaves no choice once the options are named, so those
are `valid`.
"""
