"""Tables, plots and pages from what studies say; see :mod:`gflowout.report.content`."""
