"""Renderings of a comparison: they show what the document says and decide nothing."""
