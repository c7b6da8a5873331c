"""The build of the site: what MkDocs calls, and the reference pages that it makes from the code."""
