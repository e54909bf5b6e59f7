"""Masthead's node agent: a distribution of its own, without Django."""

VERSION = "0.1.0"
