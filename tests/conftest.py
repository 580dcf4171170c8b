from hypothesis import settings

# Machines differ; how long an example takes says nothing about whether it is right.
settings.register_profile("gflowout", deadline=None, derandomize=True)
settings.load_profile("gflowout")
