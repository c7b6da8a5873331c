"""Views: what a page shows, one to a module. Each takes tables and gives a section, also of nothing."""
