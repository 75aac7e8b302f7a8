"""Commands on the data of the service: `rca db`, `rca keys`, `rca worker`.

Each is one module and one name in `rca.commands.SERVICE_COMMANDS`. The modules import the service inside
functions only. So ``rca --help`` stays fast and works without the extra ``[api]``.
"""
