"""`/ui`: the page for people: jobs, incidents, diagnoses, models. It needs no Internet access."""
