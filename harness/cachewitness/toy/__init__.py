"""The engine `toy`: the reference's scheduler over a small hybrid model whose caches are real
tensors in real pages.

What the ledger says a page should hold, the tensors hold: a fault becomes a number here, and with a
trained checkpoint a wrong answer. The package needs torch, which is imported when an engine opens
and not before.
"""
