"""Scikit-learn style estimators that train through preemption."""

from .linear import LinearRegression, LinearSVC, LogisticRegression, Ridge

__all__ = ["LinearRegression", "LinearSVC", "LogisticRegression", "Ridge"]
