from gflowout.studies.framework.summary import *  # noqa: D100, F403
