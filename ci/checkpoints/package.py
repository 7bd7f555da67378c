"""The checkpoints of cachewitness, a folder for each; `cachewitness._util.data.checkpoints`
finds them here.
"""
