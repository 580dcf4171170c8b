"""``gflowout demo``: all methods on scikit-learn's digits, a table and a page.

``data`` has the digits and what is done to them, ``metrics`` the scores and their summary,
``study`` one training run, ``run`` all of them, ``plots`` and ``page`` the page.
"""

from gflowout.core.optional import require

for _module in ("numpy", "sklearn", "matplotlib", "torchmetrics", "rich"):
    require(_module, extra="demo", purpose="gflowout demo")
