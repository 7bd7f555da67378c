"""Reads a published configuration (`config.json`, as on Hugging Face) as a model: what each kind of
layer keeps.

`fields` reads one field after the other and notes what the file leaves out; `families` says, for
every `model_type`, which fields make which caches; `read` opens the file. A configuration comes
from outside: it is bounded, and whatever is missing, mistyped or impossible is one line with the
file and the field.
"""
