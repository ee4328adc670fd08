"""``python -m backbay.diagnose``: a script of the user's, run and looked at."""

from backbay.cli.diagnose_script import command

command(prog_name="python -m backbay.diagnose")
