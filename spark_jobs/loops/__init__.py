"""The parts of loop detection: presence on members, repeats, the ring, incidents, and the page."""
