"""Calculators: apply a system's sizing rules to a model, an amount of memory and a few options.

The rules are not here. They belong to the policies (`cachewitness_reference.<system>`), which take
plain numbers. A policy's command (`harness/cachewitness/systems/<policy>/plan.py`) turns a layout
file into these numbers, and lays what comes back out in lines that say how each value comes about.
Here is what the commands share: `systems` (names and their spellings), `options` (of the command
line), `sources` (where a model comes from: a layout or a configuration), `config` (reads a
configuration), `grouping` (the groups that vLLM makes of a model), `hybrid` (what a rank keeps of
it), `lost` (what thinning out costs), `result` (what every command returns), `show` (prints it).
`layout_file` is a command of its own: it writes a configuration down as a layout.

What is refused, by a policy or by a layout file, is one line that names the field.
"""
