"""A paged prefix cache with full attention: `cache` is the policy, `engine` shows it to the
harness, `policy` registers it.
"""
