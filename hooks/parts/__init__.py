"""Parts that hooks share. No hook lies here."""
