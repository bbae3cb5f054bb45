"""Estimators as in scikit-learn, trained while machines come and go; and torch (learn.torch)."""

from typing import TYPE_CHECKING, Any

from ..interrupts import imported as _imported

if TYPE_CHECKING:
    from .coded import CodedGradient
    from .components import PCA, TruncatedSVD
    from .descent import SVRG, Constant, Decay, GradientDescent, Nesterov
    from .ensemble import CodedEnsemble
    from .kernel import KernelRidge
    from .linear import LinearRegression, LinearSVC, LogisticRegression, Ridge
    from .many import interleave, solve_many, train_many
    from .mlp import CodedMLPClassifier
    from .network import Network
    from .saving import load, save

__all__ = [
    "PCA",
    "SVRG",
    "CodedEnsemble",
    "CodedGradient",
    "CodedMLPClassifier",
    "Constant",
    "Decay",
    "GradientDescent",
    "KernelRidge",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "Nesterov",
    "Network",
    "Ridge",
    "TruncatedSVD",
    "interleave",
    "load",
    "save",
    "solve_many",
    "train_many",
]

_WHERE = {
    "coded": ["CodedGradient"],
    "components": ["PCA", "TruncatedSVD"],
    "descent": ["SVRG", "Constant", "Decay", "GradientDescent", "Nesterov"],
    "ensemble": ["CodedEnsemble"],
    "kernel": ["KernelRidge"],
    "linear": ["LinearRegression", "LinearSVC", "LogisticRegression", "Ridge"],
    "many": ["interleave", "solve_many", "train_many"],
    "mlp": ["CodedMLPClassifier"],
    "network": ["Network"],
    "saving": ["load", "save"],
}


def __getattr__(name: str) -> Any:
    # Workers load functions from this package; scikit-learn would cost each of them a second.
    for module, names in _WHERE.items():
        if name in names:
            return getattr(_imported(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
