from gflowout.studies.framework.study import *  # noqa: D100, F403
