"""Calculators: apply a system's sizing rules to a model, an amount of memory and a few options.

The rules are not here. They belong to the policies (`reference_impl.<system>`), which take plain numbers. A policy's command
(`harness/policies/<policy>/plan.py`) turns a layout file into these numbers, and lays what comes back out in lines that say how
each value comes about. Here is what the commands share: `systems` (names and their spellings), `options` (of the command line),
`hybrid` (what a rank keeps of a model), `result` (what every command returns), `show` (prints it).

What is refused, by a policy or by a layout file, is one line that names the field.
"""
