"""time of the last steps of a job that sends telemetry"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # An older version goes on writing rows without it.
    op.add_column("streamed_jobs", sa.Column("stepped_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("streamed_jobs", "stepped_at")
