"""when the fault of an observation was over"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("observations", sa.Column("over", sa.Double(), nullable=True))
