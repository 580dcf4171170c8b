from gflowout.studies.framework.content import *  # noqa: D100, F403
