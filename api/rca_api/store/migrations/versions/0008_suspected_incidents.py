"""incidents whose cause is still open"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_NEW = ("incident.suspected", "incident.confirmed")
_webhooks = sa.table("webhooks", sa.column("id", sa.String()), sa.column("events", sa.JSON()))


def upgrade() -> None:
    op.add_column(
        "incidents", sa.Column("suspected", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    # An incident that was suspected first is not announced as opened: subscribers of openings get it as well.
    _each_subscription(lambda events: [*events, *_NEW] if "incident.opened" in events else events)


def downgrade() -> None:
    _each_subscription(lambda events: [each for each in events if each not in _NEW])
    op.drop_column("incidents", "suspected")


def _each_subscription(changed: Callable[[list[str]], list[str]]) -> None:
    connection = op.get_bind()
    for row in connection.execute(sa.select(_webhooks.c.id, _webhooks.c.events)).all():
        statement = _webhooks.update().where(_webhooks.c.id == row.id).values(events=changed(row.events))
        connection.execute(statement)
