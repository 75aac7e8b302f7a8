"""Values that a shell offers for arguments; `rca --install-completion` sets it up."""

from __future__ import annotations


def causes(incomplete: str) -> list[tuple[str, str]]:
    """Offer the causes of the catalogue that begin with `incomplete`, each with its meaning."""
    from rca.window.causes import SPECS

    return [(cause, spec.meaning) for cause, spec in SPECS.items() if cause.startswith(incomplete)]


def healthy_or_causes(incomplete: str) -> list[tuple[str, str]]:
    """Offer what a simulated window can be."""
    healthy = [("healthy", "no fault")] if "healthy".startswith(incomplete) else []
    return healthy + causes(incomplete)
