"""Joins captured layers, geometry and eviction into result tables."""
