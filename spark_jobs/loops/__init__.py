"""What loop detection is made of: presence on members, repeats, the ring, incidents, and the page."""
