"""Explicit regularization by any convex potential: regularizer (RMD) and stochastic (SMD) mirror descent."""

from mirrordescent.auditing import Audit, audit
from mirrordescent.auxiliary import Auxiliary, RejectedSamplesError
from mirrordescent.base import Potential
from mirrordescent.convex import Convex
from mirrordescent.importance import anchored, fisher
from mirrordescent.indexed import Indexed
from mirrordescent.potentials import (
    L1,
    L2,
    HyperbolicEntropy,
    LInf,
    NegativeEntropy,
    QNorm,
    Quadratic,
    SquaredNorm,
)
from mirrordescent.rmd import RMD
from mirrordescent.robust import EarlyLearning, generalized_cross_entropy
from mirrordescent.sizes import step_size
from mirrordescent.smd import SMD
from mirrordescent.specs import potential
from mirrordescent.stopping import StopOnInterpolation, StopOnPlateau
from mirrordescent.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "L1",
    "L2",
    "RMD",
    "SMD",
    "Audit",
    "Auxiliary",
    "Convex",
    "EarlyLearning",
    "HyperbolicEntropy",
    "Indexed",
    "LInf",
    "NegativeEntropy",
    "Potential",
    "QNorm",
    "Quadratic",
    "RejectedSamplesError",
    "SquaredNorm",
    "StopOnInterpolation",
    "StopOnPlateau",
    "Trace",
    "__version__",
    "anchored",
    "audit",
    "fisher",
    "generalized_cross_entropy",
    "potential",
    "step_size",
]
