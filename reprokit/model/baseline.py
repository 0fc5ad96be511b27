"""The baseline: the fingerprints that people approved for one cell."""

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from reprokit.model import fingerprint as fingerprints
from reprokit.model.fingerprint import Fingerprint
from reprokit.model.trace import Document, Name, Sha256

MOST_APPROVALS = 200
Reason = Annotated[str, Meta(max_length=2000)]


class Approval(Document):
    """One approved environment and the numbers it gives."""

    reason: Annotated[Reason | None, Meta(description="Why it was approved, in the approver's words.")]
    fingerprint: Annotated[
        Fingerprint, Meta(description="What was approved; its class key says for which hardware.")
    ]


class Baseline(Document):
    """A set of approvals for one cell; several may stand side by side for one class of hardware."""

    document: Annotated[Literal["baseline"], Meta(description="Type of this document.")]
    schema_version: Annotated[Literal[1], Meta(description="Version of this document's schema.")]
    digest: Annotated[Sha256, Meta(description="Hash of the canonical content without `digest` and `run`.")]
    cell: Annotated[Name, Meta(description="Name of the cell, also the file's name.")]
    approvals: Annotated[
        list[Approval], Meta(description="In the order of approval.", min_length=1, max_length=MOST_APPROVALS)
    ]


def contradictions(baseline: Baseline) -> Iterator[str]:
    """Where the fingerprints in a baseline contradict themselves."""
    for index, approval in enumerate(baseline.approvals):
        for problem in fingerprints.contradictions(approval.fingerprint):
            yield f"/approvals/{index}/fingerprint{problem}"
