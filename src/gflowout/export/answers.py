"""What a file answers, by name: those of :class:`gflowout.Predictive`, without its shortcuts.

``Predictive`` works through large outputs part by part, which a trace would fix to one size.
"""

from __future__ import annotations

from torch import Tensor

from gflowout.core import uncertainty
from gflowout.core.likelihoods import Categorical, Gaussian, Likelihood

NAMES = frozenset(
    {
        "mean",
        "samples",
        "entropy",
        "expected_entropy",
        "mutual_information",
        "max_probability",
        "dempster_shafer",
        "variance",
        "epistemic_variance",
        "aleatoric_variance",
    }
)
"""All that there can be."""


def answers(
    outputs: Tensor, likelihood: Likelihood, scale: tuple[float, float] | None = None
) -> dict[str, Tensor]:
    """Everything that is said of a batch.

    Args:
        outputs: Raw outputs, [samples, batch, ...].
        likelihood: What they mean.
        scale: Mean and standard deviation of a regression's labels before they were standardised.

    Returns:
        ``mean`` and ``samples``; for classes ``entropy``, ``expected_entropy``,
        ``mutual_information``, ``max_probability``, ``dempster_shafer`` and ``variance``; for
        regression ``variance``, ``epistemic_variance`` and ``aleatoric_variance``.

    Examples:
        >>> import torch
        >>> found = answers(torch.zeros(20, 2, 4), Categorical(4))
        >>> list(found)
        ['mean', 'samples', 'entropy', 'expected_entropy', 'mutual_information',
         'max_probability', 'dempster_shafer', 'variance']
        >>> found["max_probability"]
        tensor([0.2500, 0.2500])
    """
    draws, flat = outputs.shape[0], outputs.flatten(0, 1)

    def split(values: Tensor) -> Tensor:
        return values.reshape(draws, -1, *values.shape[1:])

    if isinstance(likelihood, Gaussian):
        means, log_variances = (split(part) for part in likelihood.moments(flat))
        noise = log_variances.exp()
        if scale is not None:
            means, noise = means * scale[1] + scale[0], noise * scale[1] ** 2
        return {
            "mean": means.mean(0),
            "samples": means,
            "variance": uncertainty.total_variance(means, noise),
            "epistemic_variance": uncertainty.epistemic_variance(means),
            "aleatoric_variance": uncertainty.aleatoric_variance(noise),
        }
    logits = split(likelihood.class_logits(flat))
    chances = logits.softmax(-1)
    samples = chances if isinstance(likelihood, Categorical) else split(likelihood.samples(flat))
    return {
        "mean": samples.mean(0),
        "samples": samples,
        "entropy": uncertainty.predictive_entropy(chances),
        "expected_entropy": uncertainty.expected_entropy(chances),
        "mutual_information": uncertainty.mutual_information(chances),
        "max_probability": uncertainty.max_probability(chances),
        "dempster_shafer": uncertainty.dempster_shafer(logits),
        "variance": uncertainty.variance(chances),
    }
