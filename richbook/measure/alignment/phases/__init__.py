"""Power laws between H, G and Z, and the phases of the polynomial alignment hypothesis."""
