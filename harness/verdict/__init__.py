"""The outcome: results, expected failures, and one renderer for each format of a report."""
