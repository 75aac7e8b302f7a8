"""places, relapses and uncertainty of incidents; rest of webhooks; request ids of diagnoses"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # An older version goes on writing rows without these columns.
    op.add_column("incidents", sa.Column("place", sa.JSON(), nullable=True))
    op.add_column(
        "incidents", sa.Column("uncertain", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("incidents", sa.Column("reopened", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("incidents", sa.Column("changes", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("incident_events", sa.Column("place", sa.JSON(), nullable=True))
    op.add_column("incident_events", sa.Column("previous_place", sa.JSON(), nullable=True))
    op.add_column("observations", sa.Column("probability", sa.Double(), nullable=True))
    op.add_column("observations", sa.Column("place", sa.JSON(), nullable=True))
    op.add_column("observations", sa.Column("ahead", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("diagnoses", sa.Column("request_id", sa.String(128), nullable=True))
    op.add_column("webhooks", sa.Column("resting_until", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("webhooks", "resting_until")
    op.drop_column("diagnoses", "request_id")
    op.drop_column("observations", "ahead")
    op.drop_column("observations", "place")
    op.drop_column("observations", "probability")
    op.drop_column("incident_events", "previous_place")
    op.drop_column("incident_events", "place")
    op.drop_column("incidents", "changes")
    op.drop_column("incidents", "reopened")
    op.drop_column("incidents", "uncertain")
    op.drop_column("incidents", "place")
