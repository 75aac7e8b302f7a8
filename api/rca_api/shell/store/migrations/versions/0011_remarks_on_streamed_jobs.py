"""remarks on jobs that send telemetry"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("streamed_jobs", sa.Column("remarks", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("streamed_jobs", "remarks")
