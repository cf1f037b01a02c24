"""What `parity.train` is made of: the steps of each side, and the judge of both."""
