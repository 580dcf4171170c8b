from gflowout.studies.demo_data import *  # noqa: D100, F403
