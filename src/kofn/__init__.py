"""kofn: any k of n workers are enough."""

__version__ = "0.1.0"
