"""Charts: SVG that fills whatever width there is, with its labels as text beside it and its data as a table below."""
