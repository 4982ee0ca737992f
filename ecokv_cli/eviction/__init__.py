"""Importance, diversity, selection and fidelity: eviction rules as pure functions on tensors."""
