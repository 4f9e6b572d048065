"""Statistics that show sampling with speculation to be the target's own, and that they can fail."""
