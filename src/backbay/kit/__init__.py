"""Write a backend as passes, patterns and a code generator; the kit does the rest."""
