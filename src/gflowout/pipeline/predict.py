from gflowout.app.predict import *  # noqa: D100, F403
