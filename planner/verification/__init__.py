"""Is the advice true? What a plan predicted against what a server, or the engine on the device, really did.

loop.py serves a window (window.py) on the engine with the plan's own scheduler · report.py compares · load.py sends
a traffic to an OpenAI-compatible endpoint on schedule · stream.py reads one answer · prompts.py makes prompts of the
right lengths · measured.py says what came of it.
"""
