"""Pinned images: what they are made of, and how they come to be on this machine."""
