"""Random programs, whose seed is their name, for the places where compilers are silently wrong."""
