"""Seeded faults (written below)."""


def plant(name, engine, manager):
    raise NotImplementedError
