from gflowout.core.metrics import *  # noqa: D100, F403
