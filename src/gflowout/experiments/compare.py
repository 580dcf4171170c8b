from gflowout.studies.framework.statistics import *  # noqa: D100, F403
