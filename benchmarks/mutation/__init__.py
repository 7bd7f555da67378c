"""How many random faults in an engine's own source are found, here and by its own tests."""
