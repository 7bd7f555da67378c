"""The checkpoints of cachewitness, a folder for each; `harness._util.data.checkpoints` finds them here."""
