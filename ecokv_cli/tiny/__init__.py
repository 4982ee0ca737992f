"""The shipped model: its document generator, its training program and its checkpoint."""
