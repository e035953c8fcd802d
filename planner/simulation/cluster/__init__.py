"""Several replicas behind a router: N that do everything, or P that prefill and D that decode.

`deployment` says what stands where, `reference.simulate` is the rules in plain Python, the oracle, and
`planner.simulation.kernel.cluster.simulate` the compiled one; both return the same `ClusterOutcome`, bit for bit.
What happens at one instant, and in which order, is in `order`.
"""
