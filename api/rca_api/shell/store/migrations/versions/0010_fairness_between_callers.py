"""callers of streamed jobs, and turns of queued diagnoses"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("streamed_jobs", sa.Column("begun_by", sa.String(128)))
    op.create_index("ix_streamed_jobs_caller", "streamed_jobs", ["begun_by", "updated_at"])
    # What is queued already comes first.
    op.add_column("diagnoses", sa.Column("turn", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("diagnoses", "turn")
    op.drop_index("ix_streamed_jobs_caller", "streamed_jobs")
    op.drop_column("streamed_jobs", "begun_by")
