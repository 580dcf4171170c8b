"""``python -m gflowout.bench``."""

from gflowout.bench.command import main

main()
