"""The loops over engines, configurations and traces: run, fuzz, mutants, campaign."""
