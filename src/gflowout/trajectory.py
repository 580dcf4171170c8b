from gflowout.core.trajectory import *  # noqa: D100, F403
