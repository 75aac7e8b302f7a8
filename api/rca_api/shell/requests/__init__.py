"""A request on its way in and out: limits, bodies, parameters, pages and problems."""
