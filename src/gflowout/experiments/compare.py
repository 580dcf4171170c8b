from gflowout.studies.framework.compare import *  # noqa: D100, F403
