"""Coded matrices."""

from .matrix import CodedMatrix

__all__ = ["CodedMatrix"]
