"""kofn bench: a module with `run` for each; commands.py lists them, frame.py shows them."""
