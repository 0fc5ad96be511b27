"""reprokit: a determinism gate for machine-learning repositories.

Importing this package imports nothing else: both the host side and the probe side start here, and
`reprokit.seed_everything` is there once somebody asks for it.
"""

__version__ = "0.1.0"
__all__ = ["Seeding", "__version__", "seed_everything"]

TYPE_CHECKING = False  # that of `typing` is an import
if TYPE_CHECKING:
    from reprokit.seeding import Seeding, seed_everything
else:

    def __getattr__(name):
        if name not in ("Seeding", "seed_everything"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from reprokit import seeding

        return getattr(seeding, name)
