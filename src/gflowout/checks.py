from gflowout.core.checks import *  # noqa: D100, F403
