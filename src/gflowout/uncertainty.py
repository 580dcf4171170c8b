from gflowout.core.uncertainty import *  # noqa: D100, F403
