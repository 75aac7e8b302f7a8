"""Groups of `rca` that work on the service's own data: `rca db`, ...

Like those of `rca.commands`: one module each with a ``typer.Typer`` named ``app`` (and one name in
`rca.commands.SERVICE_COMMANDS`), and everything heavy is imported inside the functions, so that
``rca --help`` stays quick and works without the extra ``[api]``.
"""
