"""Views: each function renders a section of a page from tables, even if they are empty."""
