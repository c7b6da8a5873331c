"""Views: what a page shows, one to a module. Each takes tables and gives a section, also where there is nothing to show."""
