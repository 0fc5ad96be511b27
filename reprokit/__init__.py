"""reprokit: a determinism gate for machine-learning repositories.

Importing this package imports nothing else: both the host side and the probe side start here.
"""

__version__ = "0.1.0"
