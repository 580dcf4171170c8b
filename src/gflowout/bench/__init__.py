"""What things cost, as ratios measured side by side: ``gflowout bench``.

Everything runs in one process on one thread. In every round each case of a table is timed once, and
a ratio compares two times of the same round, so noise of the machine hits both sides alike.
"""

from gflowout.bench.command import run, tables
from gflowout.bench.timing import Table, environment, measure
from gflowout.bench.work import Work, count

__all__ = ["Table", "Work", "count", "environment", "measure", "run", "tables"]
