"""Readers of file headers; no torch."""
