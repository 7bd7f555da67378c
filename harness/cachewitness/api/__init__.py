"""What `import cachewitness` gives: `verify` and `check` for programs, and `suite` for pytest."""
