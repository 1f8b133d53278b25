"""What versions of the services have written, and what records it: docs/adr/0053-versions.md."""
