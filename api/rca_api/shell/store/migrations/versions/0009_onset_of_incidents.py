"""onset of incidents, beside the begin of their first window"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("observations", "incidents"):
        op.add_column(table, sa.Column("onset", sa.Double(), nullable=True))
    # A later window of an incident that is open must not become its onset.
    op.execute("UPDATE incidents SET onset = began")
    op.execute(
        "UPDATE observations SET onset = window_start "
        "WHERE incident_id IS NOT NULL AND verdict IN ('sick', 'suspect')"
    )


def downgrade() -> None:
    for table in ("incidents", "observations"):
        op.drop_column(table, "onset")
