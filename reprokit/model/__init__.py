"""The nouns: every document that leaves the program, its canonical JSON and its validation."""
