"""Calculators: what a system's sizing rules make of a model, an amount of memory and a few options.

The rules are not here. They belong to the policies (`reference_impl.<system>`), which take plain numbers; here a layout file is
turned into these numbers, one small file per system, and what comes back is laid out in lines that say how each value comes
about. `result` is what every system returns, `show` prints it.

What is refused, by a policy or by a layout file, is one line that names the field.
"""
