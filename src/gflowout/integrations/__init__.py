"""Estimators for scikit-learn, a mix-in for Lightning and models of Hugging Face transformers.

Each module needs its own extra; importing this package needs the core alone.
"""
