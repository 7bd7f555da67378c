"""What every room may use and that belongs to none: errors, files, JSON lines, where the data lies."""
