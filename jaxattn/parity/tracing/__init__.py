"""What `parity.trace` is made of: the calls of both sides, paired, measured, and mistakes tried on them."""
