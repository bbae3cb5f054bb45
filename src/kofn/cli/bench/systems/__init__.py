"""The peers of `kofn bench peers`, the works that they do, and the settings that they do them in.

Each runs in a process of its own (child.py). What is imported there is as little as can be.
"""
