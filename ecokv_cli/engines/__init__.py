"""Work on many samples: here, one after the other, or by a pool of workers on a cluster."""
