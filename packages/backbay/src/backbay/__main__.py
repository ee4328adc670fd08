"""``python -m backbay``: the command line."""

from backbay.cli import main

main()
