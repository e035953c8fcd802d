"""Kinds of files that are more than one request a line: sessions, workflows, events, distributions."""
