from gflowout.studies.demo import *  # noqa: D100, F403
