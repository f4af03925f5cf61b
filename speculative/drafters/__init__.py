"""One file per drafter."""
