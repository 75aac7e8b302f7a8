"""observations without step times"""

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
