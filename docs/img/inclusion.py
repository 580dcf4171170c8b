"""``python docs/img/inclusion.py`` makes inclusion.png, the picture of which inputs matter.

Fits ``GFlowOutClassifier(mask_inputs=True)`` at its defaults to 600 rows of a made table with a
known answer: of 60 columns one has a linear effect, two matter only together, and one of three
near-copies is needed; the others are noise. Prints what the picture shows.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pandas as pd

from gflowout.integrations.sklearn import GFlowOutClassifier

rng = np.random.default_rng(0)
X = pd.DataFrame(rng.normal(size=(600, 60)), columns=[f"noise {i}" for i in range(60)])
X.columns = ["linear", "pair, first", "pair, second", "copy 1", "copy 2", "copy 3", *X.columns[6:]]
for copy in ("copy 2", "copy 3"):
    X[copy] = X["copy 1"] + 0.1 * X[copy]
effect = 2 * X["linear"] + 3 * X["pair, first"] * X["pair, second"] + 2 * X["copy 1"]
y = effect + rng.logistic(size=len(X)) > 0

clf = GFlowOutClassifier(mask_inputs=True, random_state=0).fit(X, y)
for names, chance in clf.inclusion_.clusters(threshold=0.1):
    print(f"{chance:.2f}", " or ".join(names))
print("at a false discovery rate of 10 %:", X.columns[clf.get_support(fdr=0.1)].tolist())
clf.plot_inclusion(top=11).figure.savefig(Path(__file__).with_suffix(".png"), dpi=100)
