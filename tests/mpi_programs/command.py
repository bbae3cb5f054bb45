"""The command `kofn`, on every rank."""

from __future__ import annotations

from kofn.cli import main

if __name__ == "__main__":
    main()
