"""The bundles in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rca_api.shell.processes.bundles import BundleRef


@dataclass(frozen=True)
class Choice:
    """The bundles by role; replaced as a whole, so that no request sees half a change.

    Attributes
    ----------
    champion : BundleRef
        The bundle that answers.
    previous : BundleRef or None
        The previous champion, kept on the disk.
    challenger : BundleRef or None
        The bundle that diagnoses in shadow mode.
    rejected : mapping of str to str
        Why a bundle of the registry is not used, by SHA-256.
    postponed : mapping of str to str
        Why the trial of a bundle is not complete yet, by SHA-256.
    failure : str or None
        Why the last poll of the registry failed.
    """

    champion: BundleRef
    previous: BundleRef | None = None
    challenger: BundleRef | None = None
    rejected: Mapping[str, str] = field(default_factory=dict)
    postponed: Mapping[str, str] = field(default_factory=dict)
    failure: str | None = None


class CurrentModels:
    """The bundles in use: read by every request, changed by the follower alone.

    Parameters
    ----------
    own : BundleRef
        The operator's or the shipped bundle; answers if the registry has no champion.
    """

    def __init__(self, own: BundleRef) -> None:
        self.own = own
        self.choice = Choice(own)

    @property
    def champion(self) -> BundleRef:
        return self.choice.champion

    @property
    def previous(self) -> BundleRef | None:
        return self.choice.previous

    @property
    def challenger(self) -> BundleRef | None:
        return self.choice.challenger

    def swap(self, champion: BundleRef) -> None:
        """Let another bundle answer from the next request on."""
        if champion != self.choice.champion:
            self.choice = replace(self.choice, champion=champion, previous=self.choice.champion)

    def resume(self, champion: BundleRef, previous: BundleRef | None) -> None:
        """Restore the roles from before a restart."""
        self.choice = replace(self.choice, champion=champion, previous=previous)

    def challenge(self, challenger: BundleRef | None) -> None:
        """Set the bundle for shadow mode."""
        self.choice = replace(self.choice, challenger=challenger)

    def reject(self, sha256: str, reason: str) -> None:
        """Record why a bundle is not used."""
        self.reconsider(sha256)
        self.choice = replace(self.choice, rejected={**self.choice.rejected, sha256: reason})

    def postpone(self, sha256: str, reason: str) -> None:
        """Record why a bundle is not used yet."""
        self.choice = replace(self.choice, postponed={**self.choice.postponed, sha256: reason})

    def reconsider(self, sha256: str) -> None:
        """Delete the recorded reasons against a bundle."""
        self.choice = replace(
            self.choice,
            rejected={known: why for known, why in self.choice.rejected.items() if known != sha256},
            postponed={known: why for known, why in self.choice.postponed.items() if known != sha256},
        )

    def registry_failed(self, reason: str | None) -> None:
        """Record why the registry could not be polled; None if it could."""
        self.choice = replace(self.choice, failure=reason)
