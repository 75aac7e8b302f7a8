"""incidents whose cause is still open"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_EVENTS = {"suspected": "opened", "confirmed": "cause_changed"}


def upgrade() -> None:
    op.add_column(
        "incidents", sa.Column("suspected", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    # Earlier versions cannot read the new values.
    op.execute("UPDATE observations SET verdict = 'unsure' WHERE verdict = 'suspect'")
    for new, old in _EVENTS.items():
        op.execute(f"UPDATE incident_events SET kind = '{old}' WHERE kind = '{new}'")  # noqa: S608
        op.execute(f"DELETE FROM webhook_deliveries WHERE event = 'incident.{new}'")  # noqa: S608
    op.drop_column("incidents", "suspected")
