"""Loading transformers models, capturing their cache and decoding with them."""
