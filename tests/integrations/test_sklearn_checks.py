"""scikit-learn's own checks, all of them, with default parameters and with masked inputs."""

import subprocess
import sys
import textwrap

from sklearn.utils.estimator_checks import parametrize_with_checks

from gflowout.integrations.sklearn import GFlowOutClassifier, GFlowOutRegressor

LEARNING = (
    "check_parameters_default_constructible",
    "check_classifiers_train",
    "check_classifiers_classes",
    "check_classifiers_regression_target",
    "check_regressors_train",
    "check_sample_weight_equivalence_on_dense_data",
)
"""Checks that need the defaults, or a score that takes training. For the others three epochs do."""


@parametrize_with_checks(
    [
        GFlowOutClassifier(),
        GFlowOutRegressor(),
        # Little training, which finds nothing, so all are selected: what is checked is how.
        GFlowOutClassifier(mask_inputs=True, chains=1, epochs=4, lr=0.05, threshold=0.0),
    ]
)
def test_scikit_learn(estimator, check) -> None:
    name = getattr(check, "func", check).__name__
    if estimator.epochs is None and name not in LEARNING:
        estimator.set_params(epochs=3)
    check(estimator)


def test_scikit_learn_with_array_api() -> None:
    # The one check that is skipped unless SciPy was told before it was imported.
    code = """
        import os, warnings
        os.environ["SCIPY_ARRAY_API"] = "1"
        warnings.filterwarnings("ignore")
        from sklearn.utils.estimator_checks import estimator_checks_generator
        from gflowout.integrations.sklearn import GFlowOutClassifier, GFlowOutRegressor
        for kind in (GFlowOutClassifier, GFlowOutRegressor):
            for estimator, check in estimator_checks_generator(kind(epochs=1)):
                if "array_api" in getattr(check, "func", check).__name__:
                    check(estimator)
                    print("ran")
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["ran", "ran"]
