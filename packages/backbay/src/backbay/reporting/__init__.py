"""What reports have in common: words, and where they were made."""
