"""Carries out what a plan says: proposals, guards, durable records, and steps on a cluster.

Modules
-------
budget
    How often agents may act; the service decides with the same rules.
policy
    What an agent may do, in which jobs, how often, and whether a person approves.
journal
    Durable records of proposals and steps; nothing acts without one.
facts
    What is read from the service: incidents, and what a plan recommends.
guards
    What forbids a proposal.
steps, kubernetes, slurm, processes
    Steps of an action, each of which can say whether it is done.
agent
    Rounds: propose, approve, carry out, report to the incident.
"""
