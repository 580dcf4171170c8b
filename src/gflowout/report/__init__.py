"""Tables, plots and pages from what studies say; see :mod:`gflowout.studies.framework.content`."""
