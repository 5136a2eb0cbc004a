"""Probes: programs that run on a node or in a container, with Python 3.8 and its standard library only.

They travel as one zip file (kiln/bundle.py), print one line of JSON, and never judge.
"""
