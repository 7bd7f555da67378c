"""Trains the checkpoints: `python -m cachewitness_training NAME FOLDER`.

A model left to itself learns one way to recall and neglects the others: then most damage to its
caches costs nothing. So it is trained as caches are used. A shared prefix is computed once, and
many questions go on from what it left behind (`branches`); for each of them every layer but those
that are to carry the fact starts from nothing, or from another prefix that tells of the same things
with other numbers (`paths`). What is learnt that way is needed that way, also where all paths are
open (`needs`).

One checkpoint learns English text instead (`text`), so that what it expects next hangs on a prefix
as a pretrained model's does.
"""
