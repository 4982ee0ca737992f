"""Images, prompts and shipped samples: what the user hands in, checked early."""
