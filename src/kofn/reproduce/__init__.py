"""The papers' figures, measured again: one module a paper, pages and pictures beside."""
