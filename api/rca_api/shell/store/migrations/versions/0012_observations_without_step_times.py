"""observations without step times, and what people do about incidents"""

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
