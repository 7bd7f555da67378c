"""Word problems in the form of gsm8k whose answers need a particular cache.

A problem comes with a context that many problems share: a price list, what people own, and worked examples. Three groups of
families ask for different things: `full` needs a price from the list at the very start, `recurrent` what somebody owns now (the
examples change it), `window` only the question itself. A cache that damages one of them loses points in that group.
"""
