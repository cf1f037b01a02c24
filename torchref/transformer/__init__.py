"""Positions and encoder layers."""
