"""What drives a trace through an engine, the worker, the ledger and the checkers, and keeps what fails."""
