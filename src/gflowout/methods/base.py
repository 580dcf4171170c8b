from gflowout.core.method import *  # noqa: D100, F403
