"""Word problems in the form of gsm8k whose answers need a particular cache.

A problem comes with a context that many problems share: a price list, what people have and owe,
worked examples, and rules in its last sentence. Three groups of families ask for different things:
`full` needs a price from the list at the very start, `recurrent` what somebody has or owes now (the
examples change it), `window` a rule, which is said anew all the time and last at the very end. A
cache that damages one of them loses points in that group.
"""
