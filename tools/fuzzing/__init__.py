"""What ``tools/fuzz.py`` calls: made-up networks, actions on them, and checks of the results."""
