from gflowout.studies.demo.data import *  # noqa: D100, F403
