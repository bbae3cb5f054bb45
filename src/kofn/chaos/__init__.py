"""Chaos on real processes: `kofn chaos`. See docs/testing.md.

`work` is what is done, and what it should come to. `strikes` disturbs it from outside: by signals
to workers, and by Ctrl-C. `leaks` is what may be left behind. `run` puts them together.
"""
