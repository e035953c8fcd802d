"""Serving engines as the planner sees them: their rules, their defaults and their flags. One module each."""
