from gflowout.studies.images import *  # noqa: D100, F403
