"""Trains the checkpoints: `python -m harness.engines.toy.train NAME`.

A model left to itself learns one way to recall and neglects the others: then half of all damage to its caches costs nothing. So
most sequences are trained with a path closed: recurrent memories are dropped right after the price list, which leaves prices
to full attention; and full attention must do without old statements of what people own, which leaves those to recurrent
memory. Only the numbers in the question stay near enough for a sliding window.
"""
