"""``python -m gflowout.cli``."""

from gflowout.cli import main

main()
