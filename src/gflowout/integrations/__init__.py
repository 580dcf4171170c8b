"""Other libraries' ways to train and predict, on top of this one.

``gflowout.integrations.sklearn`` has estimators for scikit-learn (extra ``sklearn``). Importing
this package needs the core alone.
"""
