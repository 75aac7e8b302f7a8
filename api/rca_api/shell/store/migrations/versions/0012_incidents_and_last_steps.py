"""observations without step times, what people do about incidents, last steps and sizes of a job"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    untimed: sa.Column[bool] = sa.Column("untimed", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("observations", untimed)
    for name in ("acknowledged_at", "muted_until"):
        op.add_column("incidents", sa.Column(name, sa.DateTime(timezone=True)))
    for name in ("acknowledged_by", "assigned_to"):
        op.add_column("incidents", sa.Column(name, sa.String(128)))
    op.add_column("incidents", sa.Column("closing_note", sa.Text()))
    # An older version goes on writing rows without it.
    for name in ("stepped_at", "silence_again_at"):
        op.add_column("streamed_jobs", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    op.add_column("telemetry_segments", sa.Column("world_size", sa.Integer(), nullable=True))
    op.add_column("streamed_jobs", sa.Column("steady_since", sa.BigInteger(), nullable=True))
