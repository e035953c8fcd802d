"""What happens to every request when an engine with these knobs meets this traffic on this device?

`reference.simulate` is the rules in plain Python, the oracle. `kernel.simulate` is the compiled one that plans
run; both return the same `Outcome`, bit for bit. `cases` compares either with what real schedulers did.
"""
