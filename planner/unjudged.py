"""How the sentence starts of a plan whose closest candidate left the measured region: nothing is known to fail.

A module of its own, so that the models, which read it, do not load the search and its kernels into every process.
"""

UNJUDGED = "Nothing can be recommended"
