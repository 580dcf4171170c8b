from gflowout.report.summary import *  # noqa: D100, F403
