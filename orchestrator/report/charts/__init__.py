"""Charts: SVG of any width, with labels as text and data as a table."""
