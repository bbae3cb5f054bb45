"""Scikit-learn style estimators that train through preemption."""

from .linear import LinearRegression, LinearSVC, LogisticRegression, Ridge
from .mlp import MLPClassifier

__all__ = ["LinearRegression", "LinearSVC", "LogisticRegression", "MLPClassifier", "Ridge"]
