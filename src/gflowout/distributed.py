from gflowout.core.distributed import *  # noqa: D100, F403
